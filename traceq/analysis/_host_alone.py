"""Whether the host alone limits a trace without the rows of its device: by the calls that may wait for that."""

from __future__ import annotations

import re

import numpy as np

from traceq.analysis._wording import per_step
from traceq.facts.events.device_work import lacks_device_rows
from traceq.facts.events.name_patterns import matching
from traceq.facts.timeline.steps import steps
from traceq.intervals import measure_common, spans
from traceq.model import Category, Trace
from traceq.report import Finding, found
from traceq.units import Unit, format_value

__all__ = ["host_alone"]

_FEWEST_LAUNCHES, _MOST_WAIT = 10, 0.1
"""Launches from which a trace tells, and the most that calls which may wait for the device take of its steps."""
_QUEUE_NS = 100_000
"""Duration from which a launch may wait for room in the queue."""
_LAUNCH, _WAITS_FOR_ALL = re.compile(r"Launch"), re.compile(r"(Device|Stream|Event)Synchronize$")
_NEVER_WAITS = re.compile(r"Get|Query|Occupancy|Record|IsCapturing|PeekAtLastError|EventCreate|SetDevice")


def host_alone(trace: Trace) -> Finding | None:
    """Return how little a faster device would save, where the trace does not show what the device does.

    That is known if the last call waits for all that was launched: then the steps take what the host takes, and what it
    waited, which is at most the time of all calls but launches and queries.
    """
    events = trace.events
    calls = events.rows(Category.RUNTIME)
    if not lacks_device_rows(trace) or not len(calls):
        return None
    launches, synchronizes = (calls[matching(events, calls, pattern)] for pattern in (_LAUNCH, _WAITS_FOR_ALL))
    if len(launches) < _FEWEST_LAUNCHES or not len(synchronizes):
        return None
    if events.ts[synchronizes].max() < events.ts[launches].max():
        return None
    may_wait = ~matching(events, calls, _LAUNCH) & ~matching(events, calls, _NEVER_WAITS)
    may_wait |= events.dur[calls] >= _QUEUE_NS
    waits = calls[may_wait]
    counted = spans(*steps(trace).host[steps(trace).counted].T)
    wait_ns = measure_common(spans(events.ts[waits], events.end[waits]), counted)
    whole_ns = int(np.diff(counted).sum())
    if wait_ns > _MOST_WAIT * whole_ns:
        return None
    num = int(steps(trace).counted.sum())
    text = (
        f"the host limits this trace, whose device is not recorded: calls that may wait for it take "
        f"{format_value(wait_ns / num, Unit.NS)} {per_step(steps(trace))} "
        f"({format_value(100 * wait_ns / whole_ns, Unit.PERCENT)}), the last of them after the last launch; a faster "
        "device saves no more than that"
    )
    lead = f"the host limits this trace: a faster device saves at most {format_value(wait_ns / num, Unit.NS)}"
    return found("host_alone", "medium", text, round((whole_ns - wait_ns) / num), lead=lead)
