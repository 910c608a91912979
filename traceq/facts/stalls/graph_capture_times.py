"""Time of the host that a CUDA graph takes once: its preparation, its capture, its instantiation."""

from __future__ import annotations

import numpy as np

from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import capture_spans
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.stalls.one_time_syncs import FILLED, capturing_calls
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.intervals import Spans, intersect, measure_common, sorted_unique, spans, union
from traceq.model import Trace

__all__ = ["capturing_ns", "graph_capture_times"]


@once_per_trace
def graph_capture_times(trace: Trace) -> Spans:
    """Return when the host captures graphs, prepares that and completes it: int64[N, 2] ns.

    Preparation and completion are the time in the outermost op around a capture from the last work launched before,
    other than what fills the state of random numbers, to the first launched after it.
    """
    events, work, captures = trace.events, device_work(trace), capture_spans(trace)
    launches, begun = sorted_unique(work.call[work.linked]), capturing_calls(trace)
    result = spans(*captures.T)
    for track in sorted_unique(tracks(trace)[begun]).tolist():
        ops = host_ops(trace).get(track)
        on_track = np.isin(captures[:, 0], events.ts[begun[tracks(trace)[begun] == track]])
        if ops is None or not on_track.any():
            continue
        begin, end = captures[on_track].T
        top = np.r_[ops.outermost(), -1][ops.innermost_at(begin)]
        calls = launches[tracks(trace)[launches] == track]
        calls = calls[np.argsort(events.ts[calls], kind="stable")]
        launch_ns, returned_ns = events.ts[calls], np.r_[np.repeat(ops.start[:1], FILLED + 1), events.end[calls]]
        since = np.maximum(returned_ns[np.searchsorted(launch_ns, begin)], ops.start[top])
        until = np.minimum(np.r_[launch_ns, ops.end.max()][np.searchsorted(launch_ns, end)], ops.end[top])
        result = union(result, spans(since[top >= 0], until[top >= 0]))
    return result


def capturing_ns(trace: Trace) -> float:
    """Return ns of a mean counted step in which the device waits for a host that captures graphs."""
    windows = steps(trace).window[steps(trace).counted]
    waits = intersect(graph_capture_times(trace), activity(trace).when(TimeCategory.HOST_BOUND))
    return measure_common(waits, spans(*windows.T)) / len(windows)
