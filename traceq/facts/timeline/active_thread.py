"""The thread that is at work on the host at each time: host threads treated as one timeline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import host_ops, op_nests, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import main_track
from traceq.frozen import frozen
from traceq.intervals import sorted_unique
from traceq.model import Trace

_MOST_THREADS = 128
"""Threads that are followed at once, more than any program launches from: each one is looked at for every instant."""


@frozen(eq=False)
class ActiveThread:
    """Active thread and its innermost op at K instants.

    `time_ns` int64[K]; `track` int64[K], the active thread; `op` int32[K] into the nest of its ops (host_ops), -1
    outside all ops.
    """

    time_ns: NDArray[np.int64]
    track: NDArray[np.int64]
    op: NDArray[np.int32]

    def take(self, index: NDArray[np.int64]) -> ActiveThread:
        """Return the same at some of the instants."""
        return ActiveThread(self.time_ns[index], self.track[index], self.op[index])

    def assign(self, trace: Trace, track: NDArray[np.int64], index: NDArray[np.int64]) -> None:
        """Make the threads `track`, int64[K], the active ones at the instants `index`, where they are in an op."""
        for part in op_nests(trace).on(track[index]):
            which = index[part.which]
            op = part.innermost_at(self.time_ns[which])
            in_op = np.flatnonzero(op >= 0)
            self.track[which[in_op]] = track[which[in_op]]
            self.op[which[in_op]] = op[in_op] - part.first[in_op]


@once_per_trace
def launching_threads(trace: Trace) -> tuple[int, ...]:
    """Return the tracks of the main thread and of the others that launch, of those the 128 that launch most."""
    main, work = main_track(trace), device_work(trace)
    launches = tracks(trace)[work.call[work.linked]]
    launches = launches[launches != main]
    launching = sorted_unique(launches)
    if len(launching) > _MOST_THREADS:
        most_first = np.argsort(-np.bincount(np.searchsorted(launching, launches)), kind="stable")
        launching = np.sort(launching[most_first[:_MOST_THREADS]])
    return main, *launching.tolist()


def active_thread(trace: Trace, time_ns: NDArray[np.int64], threads: tuple[int, ...] | None = None) -> ActiveThread:
    """Return the active thread at each time: the first of some or, while that is in no op, another one that is.

    `threads` are those that launch, the main one first, unless others are given.
    """
    leader, *others = threads or launching_threads(trace)
    active = ActiveThread(time_ns, np.full(len(time_ns), leader), _innermost_op(trace, leader, time_ns))
    idle = np.flatnonzero(active.op < 0) if others else time_ns[:0]
    for track in others:
        op = _innermost_op(trace, track, time_ns[idle])
        in_op = np.flatnonzero(op >= 0)
        active.track[idle[in_op]], active.op[idle[in_op]] = track, op[in_op]
    return active


@once_per_trace
def parallel_launches(trace: Trace) -> float:
    """Return the share of launches made by a thread while another one is the active one."""
    work = device_work(trace)
    calls = sorted_unique(work.call[work.linked])
    if len(calls) == 0:
        return 0.0
    return float((active_thread(trace, trace.events.ts[calls]).track != tracks(trace)[calls]).mean())


def _innermost_op(trace: Trace, track: int, time_ns: NDArray[np.int64]) -> NDArray[np.int32]:
    ops = host_ops(trace).get(track)
    return np.full(len(time_ns), -1, np.int32) if ops is None else ops.innermost_at(time_ns).astype(np.int32)
