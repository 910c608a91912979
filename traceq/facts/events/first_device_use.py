"""The first use of the device by a process: it starts the driver, and takes seconds.

A trace may begin later, while the device is behind: its first op may take as long for a copy to the host.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.events.unrecorded_work import unrecorded_work
from traceq.facts.memo import once_per_trace
from traceq.intervals import intersect, measure_within, spans
from traceq.model import Category, Trace

__all__ = ["first_device_use"]

_LEAST_NS = 100_000_000
_COPY = re.compile("memcpy", re.IGNORECASE)
"""What copies needs memory of the device, which was allocated by a call before it."""
_WAITS = re.compile("memcpy|Synchronize", re.IGNORECASE)


@once_per_trace
def first_device_use(trace: Trace) -> NDArray[np.int64]:
    """Return int64[0 or 1]: the row of the outermost op around the first runtime call, if it takes very long.

    The time in which it waits for work that the trace does not show does not count.
    """
    events = trace.events
    calls = events.rows(Category.RUNTIME)
    nothing = calls[:0]
    if len(calls) == 0 or len(device_work(trace)) == 0:
        return nothing
    first = calls[[np.argmin(events.ts[calls])]]
    if matching(events, first, _COPY).any():
        return nothing
    ops = host_ops(trace).get(int(tracks(trace)[first[0]]))
    index = ops.innermost_at(events.ts[first]) if ops is not None else nothing
    if ops is None or index[0] < 0:
        return nothing
    row = ops.rows[ops.outermost()[index]]
    waits = calls[matching(events, calls, _WAITS)]
    waiting = intersect(unrecorded_work(trace), spans(events.ts[waits], events.end[waits]))
    takes_ns = events.dur[row] - measure_within(waiting, events.ts[row], events.end[row])
    is_first = (events.ts[row] <= device_work(trace).start.min()) & (takes_ns >= _LEAST_NS)
    return row.compress(is_first)
