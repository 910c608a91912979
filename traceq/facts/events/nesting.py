"""Which host row is open at an instant, and what encloses it: by thread, for all instants at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.memo import once_per_trace
from traceq.intervals import count_before, sorted_unique
from traceq.model import Category, Events, Trace

__all__ = ["Nest", "host_ops", "nest", "python_frames", "tracks"]

NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """Intervals of one thread by (start, longest first, row): `rows` int64[M] into Events; `parent` int64[M] into
    this nest, the innermost interval that encloses each, -1 at the top.
    """

    rows: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    parent: NDArray[np.int64]

    def at(self, instants: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[K]: index of the innermost interval open at each instant, -1 where none is."""
        found = count_before(self.start, instants)
        found -= 1
        pending = np.flatnonzero(found >= 0)
        while len(pending := pending.compress(self.end[found[pending]] <= instants[pending])):
            around = self.parent[found[pending]]
            found[pending] = around
            pending = pending.compress(around >= 0)
        return found

    def is_open(self, instants: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[K]: any interval is open at each instant."""
        num = count_before(self.start, instants)
        reach = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(self.end)]
        return np.asarray(reach[num] > instants)

    def behind(self) -> NDArray[np.int64]:
        """int64[M]: index of the first later interval that is not inside each, M where there is none."""
        return len(self.end) - 1 - _previous(self.end[::-1], np.less_equal)[::-1]

    def index_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[K]: index of the interval of each row of Events, -1 for a row that is none of these."""
        size = 1 + max(self.rows.max(initial=-1), rows.max(initial=-1))
        index = np.full(size + 1, -1)  # what is asked with row -1 finds the last one
        index[self.rows] = np.arange(len(self.rows))
        return np.asarray(index[rows])

    def first_enclosing(self, found: NDArray[np.int64], wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
        """From each index (itself included) upwards to the first interval that is `wanted` (bool[M]), else -1."""
        if not wanted.any():
            return np.full(len(found), NONE)
        reach = np.maximum.accumulate(np.where(wanted, self.end, np.iinfo(np.int64).min))
        around = reach >= self.end  # else it has no wanted one above it, and need not look for it level by level
        found = np.where((found >= 0) & around[found], found, NONE)
        pending = np.flatnonzero(found >= 0)
        while len(pending := pending.compress(~wanted[found[pending]])):
            found[pending] = self.parent[found[pending]]
            pending = pending.compress(found[pending] >= 0)
        return found

    def top(self) -> NDArray[np.int64]:
        """int64[M]: the outermost interval around each (itself where it is one)."""
        top = np.where(self.parent >= 0, self.parent, np.arange(len(self.parent)))
        while (above := top[top] != top).any():
            top[above] = top[top[above]]
        return top


def nest(events: Events, rows: NDArray[np.int64]) -> Nest:
    """The nest of some rows of one thread."""
    start, end = events.ts[rows], events.ts[rows] + events.dur[rows]
    order = np.argsort(start, kind="stable")
    same = np.diff(start[order]) == 0
    tied = np.flatnonzero(np.r_[False, same] | np.r_[same, False][: len(rows)])
    among = order[tied]  # few, where all rows are nearly in order already
    order[tied] = among[np.lexsort((rows[among], -end[among], start[among]))]
    rows, start, end = rows[order], start[order], end[order]
    return Nest(rows, start, end, _previous(end, np.less))


def _previous(ends: NDArray[np.int64], passes: np.ufunc) -> NDArray[np.int64]:
    """Index of the nearest earlier end that each does not pass by (np.less: that is not less), -1 where none is; by
    pointer jumping, but for those that pass by the latest end so far.
    """
    passes_all = np.r_[True, passes(np.maximum.accumulate(ends)[:-1], ends[1:])][: len(ends)]
    before = np.where(passes_all, NONE, np.arange(-1, len(ends) - 1))
    pending = 1 + np.flatnonzero(passes(ends[:-1], ends[1:]) & ~passes_all[1:])
    while len(pending):
        earlier = before[before[pending]]
        before[pending] = earlier
        pending = pending.compress((earlier >= 0) & passes(ends[earlier], ends[pending]))
    return before


@once_per_trace
def tracks(trace: Trace) -> NDArray[np.int64]:
    """int64[N]: one number for each (pid, tid)."""
    events = trace.events
    number: NDArray[np.int64] = events.pid.astype(np.int64)
    number *= len(events.strings)
    number += events.tid
    return number


@once_per_trace
def host_ops(trace: Trace) -> dict[int, Nest]:
    """Nests of the CPU ops by track."""
    return _by_track(trace, trace.events.rows(Category.CPU_OP))


@once_per_trace
def python_frames(trace: Trace) -> dict[int, Nest]:
    """Nests of the Python frames by track."""
    return _by_track(trace, trace.events.rows(Category.PYTHON))


def _by_track(trace: Trace, rows: NDArray[np.int64]) -> dict[int, Nest]:
    of_row = tracks(trace)[rows]
    return {int(track): nest(trace.events, rows[of_row == track]) for track in sorted_unique(of_row)}
