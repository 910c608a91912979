"""The thread that is at work on the host at each time: host threads treated as one timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import main_track
from traceq.intervals import sorted_unique
from traceq.model import Trace

__all__ = ["ActiveThread", "active_thread", "parallel_launches"]


@dataclass(frozen=True, slots=True, eq=False)
class ActiveThread:
    """Active thread and its innermost op at K instants.

    `time_ns` int64[K]; `track` int64[K], the active thread; `op` int64[K] into the nest of its ops (host_ops), -1
    outside all ops.
    """

    time_ns: NDArray[np.int64]
    track: NDArray[np.int64]
    op: NDArray[np.int64]

    def assign(self, trace: Trace, track: int, index: NDArray[np.int64]) -> None:
        """Make a thread the active one at those of the instants `index` (int64[]) at which it is in an op."""
        op = _innermost_op(trace, track, self.time_ns[index])
        in_op = np.flatnonzero(op >= 0)
        self.track[index[in_op]], self.op[index[in_op]] = track, op[in_op]


def active_thread(trace: Trace, time_ns: NDArray[np.int64]) -> ActiveThread:
    """Return the active thread at each time: the main one or, while that is in no op, a launching one that is."""
    main, work = main_track(trace), device_work(trace)
    active = ActiveThread(time_ns, np.full(len(time_ns), main), _innermost_op(trace, main, time_ns))
    main_idle = np.flatnonzero(active.op < 0) if len(work) else time_ns[:0]
    for track in sorted_unique(tracks(trace)[work.call[work.linked]]).tolist():
        if track != main:
            active.assign(trace, track, main_idle)
    return active


@once_per_trace
def parallel_launches(trace: Trace) -> float:
    """Return the share of launches made by a thread while another one is the active one."""
    work = device_work(trace)
    calls = sorted_unique(work.call[work.linked])
    if len(calls) == 0:
        return 0.0
    return float((active_thread(trace, trace.events.ts[calls]).track != tracks(trace)[calls]).mean())


def _innermost_op(trace: Trace, track: int, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    ops = host_ops(trace).get(track)
    return ops.innermost_at(time_ns) if ops is not None else np.full(len(time_ns), -1)
