"""Self time of host ops: each instant of a thread belongs to the innermost op or runtime call that is open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.nesting import Nest, nest, tracks
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

__all__ = ["SelfTimes", "own_ns", "self_times"]


@dataclass(frozen=True, slots=True, eq=False)
class SelfTimes:
    """Ops and runtime calls of all threads, by thread, H of them: `rows` int64[H] into Events, `track` int64[H], `ns`
    int64[H]. The times of a thread add up to the time in which it runs any of them.
    """

    rows: NDArray[np.int64]
    track: NDArray[np.int64]
    ns: NDArray[np.int64]


def self_times(trace: Trace) -> SelfTimes:
    """Self time of every CPU op and runtime call."""
    rows = trace.events.rows(Category.CPU_OP, Category.RUNTIME)
    of_row = tracks(trace)[rows]
    nests = [(int(track), nest(trace.events, rows[of_row == track])) for track in sorted_unique(of_row)]
    nothing = np.empty(0, np.int64)
    return SelfTimes(
        rows=np.concatenate([nothing, *(found.rows for _, found in nests)]),
        track=np.concatenate([nothing, *(np.full(len(found.rows), track) for track, found in nests)]),
        ns=np.concatenate([nothing, *(own_ns(found) for _, found in nests)]),
    )


def own_ns(found: Nest) -> NDArray[np.int64]:
    """int64[M] ns: the time of each interval of a nest in which it is the innermost one open."""
    ends: NDArray[np.int64] = np.minimum(found.end, np.r_[found.start, np.iinfo(np.int64).max][found.behind()])
    covered = ends - found.start
    own, inner = covered.copy(), found.parent >= 0
    np.subtract.at(own, found.parent[inner], covered[inner])
    return own
