"""What counted steps hold that is once: starts, loading, captures, first calls, a pause; other findings go without."""

from __future__ import annotations

import numpy as np

from traceq.analysis._wording import in_some_steps
from traceq.facts.events.device_work import device_work
from traceq.facts.stalls.lost_once import lost_once, lost_once_ns, lost_once_share
from traceq.facts.timeline.once import OnceKind
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import BUSY, TimeCategory, activity, in_counted_steps
from traceq.intervals import measure_within
from traceq.model import Trace
from traceq.report import Finding, found
from traceq.units import Unit, format_value

__all__ = ["cold_start"]

_LEAST_SHARE = 0.1
"""Part of the counted steps from which what is once is told."""
_NAMED, _LONG_PART = 3, 0.1
_WORDS = {
    OnceKind.DEVICE_START: "the first use of the device ({}) takes {}",
    OnceKind.LIBRARY_START: "starting libraries ({}) {}",
    OnceKind.KERNEL_LOADING: "loading kernels ({}) {}",
    OnceKind.GRAPH_CAPTURE: "capturing CUDA graphs {1}",
    OnceKind.PROFILER: "the profiler's own work ({}) {}",
    OnceKind.FIRST_CALL: "first calls of ops ({}) {}",
    OnceKind.COMPILING: "compiling before a first launch ({}) {}",
    OnceKind.PAUSE: "one pause before {} {}",
}
"""Words of a kind, with the name of its longest part and its time."""


def cold_start(trace: Trace) -> Finding | None:
    """Return a finding where the counted steps hold a good deal that is once."""
    if lost_once_share(trace) < _LEAST_SHARE:
        return None
    lost, all_ns = lost_once(trace), lost_once_ns(trace)
    windows = steps(trace).window[steps(trace).counted]
    num = int(np.count_nonzero(measure_within(activity(trace).when(TimeCategory.ONCE), *windows.T)))
    what = "a pause" if lost[0].kind == OnceKind.PAUSE else "cold start"
    takes = f"{what}, {format_value(all_ns, Unit.NS)} once per process{in_some_steps(num, len(windows))}"
    words = [_WORDS[each.kind].format(each.name, format_value(each.ns, Unit.NS)) for each in lost]
    after = _after(trace)
    return found(
        "cold_start",
        "high",
        f"{takes}: {', '.join(words)}{after}; trace steps after a warm-up",
        all_ns,
        lead=f"{takes}: trace steps after a warm-up",
        evidence=f"{', '.join(words[:_NAMED])}{after}",
    )


def _after(trace: Trace) -> str:
    """Return `; after it the device is busy for 98.8 % of 85.3 ms`: after the last long part that is once."""
    if not len(device_work(trace)):
        return ""
    done, inside = activity(trace), in_counted_steps(trace)
    lost = done.parts[inside & (done.category == TimeCategory.ONCE)]
    long = lost[np.diff(lost)[:, 0] >= _LONG_PART * lost_once_ns(trace)]
    later = inside & (done.parts[:, 0] >= long[:, 1].max(initial=0)) & (done.category != TimeCategory.ONCE)
    ns, busy_ns = (int(done.ns[pieces].sum()) for pieces in (later, later & done.among(*BUSY)))
    if not ns:
        return ""
    share = format_value(100 * busy_ns / ns, Unit.PERCENT)
    return f"; after it the device is busy for {share} of {format_value(ns, Unit.NS)}"
