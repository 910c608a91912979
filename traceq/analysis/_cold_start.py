"""What counted steps hold that is once: starts, loading, captures, first calls, a pause; other claims go without."""

from __future__ import annotations

import numpy as np

from traceq.claims.claim import Claim, Measure, in_some_steps, measured
from traceq.claims.limits import LARGE, MUCH
from traceq.facts.events.device_work import device_work
from traceq.facts.stalls.lost_once import lost_once, lost_once_ns, lost_once_share
from traceq.facts.timeline.once import OnceKind
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import BUSY, TimeCategory, activity, in_counted_steps
from traceq.intervals import measure_within
from traceq.model import Trace

__all__ = ["cold_start"]

_LONG_PART = 0.1
_MEASURES = {
    OnceKind.DEVICE_START: ("device_start_ns", "device_start_of"),
    OnceKind.LIBRARY_START: ("library_start_ns", "library_start_of"),
    OnceKind.KERNEL_LOADING: ("kernel_loading_ns", "kernel_loading_of"),
    OnceKind.GRAPH_CAPTURE: ("graph_capture_ns", "graph_capture_of"),
    OnceKind.PROFILER: ("profiler_ns", "profiler_of"),
    OnceKind.FIRST_CALL: ("first_calls_ns", "first_calls_of"),
    OnceKind.COMPILING: ("compiling_ns", "compiling_of"),
    OnceKind.PAUSE: ("pause_ns", "pause_before"),
}
"""Of a kind its time, and the call or op that has most of it; of a pause what follows."""


def cold_start(trace: Trace) -> Claim | None:
    """Return a claim where the counted steps hold a good deal that is once; its ns are those of all of them."""
    if lost_once_share(trace) < LARGE:
        return None
    lost, all_ns = lost_once(trace), lost_once_ns(trace)
    windows = steps(trace).window[steps(trace).counted]
    num = int(np.count_nonzero(measure_within(activity(trace).when(TimeCategory.ONCE), *windows.T)))
    of_kinds: dict[str, Measure] = {}
    for each in lost:
        of_kinds |= zip(_MEASURES[each.kind], (each.ns, each.name), strict=True)
    measures = measured(
        what="a pause" if all(each.kind == OnceKind.PAUSE for each in lost) else "a cold start",
        once_ns=all_ns,
        **of_kinds,
        **in_some_steps(num, len(windows)),
        **_after(trace),
    )
    return Claim("cold_start", all_ns, measures=measures)


def _after(trace: Trace) -> dict[str, Measure]:
    """Return how busy the device is after the last long part that is once; nothing without a device, or much time."""
    if not len(device_work(trace)):
        return {}
    done, inside = activity(trace), in_counted_steps(trace)
    lost = done.parts[inside & (done.category == TimeCategory.ONCE)]
    long = lost[np.diff(lost)[:, 0] >= _LONG_PART * lost_once_ns(trace)]
    later = inside & (done.parts[:, 0] >= long[:, 1].max(initial=0))  # all of it, so that it is one stretch of time
    recurs = inside & (done.category != TimeCategory.ONCE)
    all_ns, ns, busy_ns = (int(done.ns[pieces].sum()) for pieces in (recurs, later, later & done.among(*BUSY)))
    return {"after_ns": ns, "busy_after_pct": 100 * busy_ns / ns} if ns > MUCH * all_ns else {}
