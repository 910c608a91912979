"""The host as one line: which of its threads is at work at an instant."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.timeline.steps import main_track
from traceq.intervals import sorted_unique
from traceq.model import Trace

__all__ = ["ActiveThread", "active_thread"]


@dataclass(frozen=True, slots=True, eq=False)
class ActiveThread:
    """At K instants: `track` int64[K], the thread at work; `op` int64[K], the innermost op that it is in, an index into
    its nest of host_ops, -1 in none.
    """

    at: NDArray[np.int64]
    track: NDArray[np.int64]
    op: NDArray[np.int64]

    def give(self, trace: Trace, number: int, asked: NDArray[np.int64]) -> None:
        """To a thread, at those of some instants (indices) at which it is in an op."""
        found = _innermost_op(trace, number, self.at[asked])
        there = np.flatnonzero(found >= 0)
        self.track[asked[there]], self.op[asked[there]] = number, found[there]


def active_thread(trace: Trace, at: NDArray[np.int64]) -> ActiveThread:
    """The thread at work at each instant: the main one or, while only that is in an op, one that launches."""
    own, work = main_track(trace), device_work(trace)
    turns = ActiveThread(at, np.full(len(at), own), _innermost_op(trace, own, at))
    free = np.flatnonzero(turns.op < 0) if len(work) else at[:0]
    for number in sorted_unique(tracks(trace)[work.call[work.linked]]).tolist():
        if number != own:
            turns.give(trace, number, free)
    return turns


def _innermost_op(trace: Trace, track: int, at: NDArray[np.int64]) -> NDArray[np.int64]:
    ops = host_ops(trace).get(track)
    return ops.at(at) if ops is not None else np.full(len(at), -1)
