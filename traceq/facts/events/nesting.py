"""Nesting of host rows by thread: the innermost row open at a time, the rows that enclose it, and their context."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import matching
from traceq.facts.memo import once_per_trace
from traceq.frozen import frozen
from traceq.grouping import by_value
from traceq.intervals import TOO_DEEP, ascending, contains, count_before, last_open, sorted_unique, spans
from traceq.model import Category, Events, Trace

_FEW_LEVELS = 32
"""Levels that are walked up one by one, as deep as most traces; deeper ones at once, at a cost per interval."""


@frozen(eq=False)
class Nest:
    """M intervals of one thread, sorted by (start, longest first, row).

    `rows` int64[M] into Events; `start`, `end` int64[M] ns; `parent` int64[M] into this nest, the innermost interval
    that encloses each, -1 at the top.
    """

    rows: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    parent: NDArray[np.int64]

    def innermost_at(self, instants: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the innermost interval open at each instant: int64[K], -1 if none is."""
        index = last_open(self.start, self.end, self.parent, instants, _FEW_LEVELS)
        deeper = np.flatnonzero(index == TOO_DEEP)
        if len(deeper):
            index[deeper] = self._innermost_after_an_end(instants[deeper])
        return index

    def _innermost_after_an_end(self, instants: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same for instants before which an interval ends after the last one begins, at any depth.

        An interval that ends while none that began later is open leaves the innermost one to the nearest earlier
        interval that ends later: the last such end before an instant decides.
        """
        later = self.next_outside()
        begins_later = np.r_[self.start, np.iinfo(np.int64).max][later]
        leaves = np.flatnonzero(begins_later >= self.end)
        leaves = leaves[np.argsort(self.end[leaves], kind="stable")]
        outer = _nearest_earlier(self.end, np.less_equal)
        return np.asarray(outer[leaves[np.searchsorted(self.end[leaves], instants, "right") - 1]])

    def is_open(self, instants: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether any interval is open at each instant: bool[K]."""
        num = count_before(self.start, instants)
        reach = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(self.end)]
        return np.asarray(reach[num] > instants)

    def next_outside(self) -> NDArray[np.int64]:
        """Return the index of the first later interval that is not inside each one: int64[M], M if there is none."""
        return len(self.end) - 1 - _nearest_earlier(self.end[::-1], np.less_equal)[::-1]

    def index_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the interval of each row of Events: int64[K], -1 for rows outside this nest."""
        size = 1 + max(self.rows.max(initial=-1), rows.max(initial=-1))
        index = np.full(size + 1, -1)  # the extra last element answers row -1
        index[self.rows] = np.arange(len(self.rows))
        return np.asarray(index[rows])

    def first_enclosing(self, index: NDArray[np.int64], matches: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the first interval with `matches` (bool[M]) from each index upwards, itself included, else -1."""
        if not matches.any():
            return np.full(len(index), -1)
        latest_match_end = np.maximum.accumulate(np.where(matches, self.end, np.iinfo(np.int64).min))
        may_be_inside = latest_match_end >= self.end  # spares all others the walk up, level by level
        index = np.where((index >= 0) & may_be_inside[index], index, -1)
        pending = np.flatnonzero(index >= 0)
        for _ in range(_FEW_LEVELS if len(pending) < len(matches) else 0):  # of more, all intervals at once are fewer
            pending = pending.compress(~matches[index[pending]])
            if len(pending) == 0:
                return index
            index[pending] = self.parent[index[pending]]
            pending = pending.compress(index[pending] >= 0)
        nearest = np.r_[np.where(matches, np.arange(len(matches)), self.parent), -1]  # the last element is that of -1
        while not np.array_equal(further := nearest[nearest], nearest):
            nearest = further
        index[pending] = nearest[index[pending]]
        return index

    def depth(self, most: int) -> NDArray[np.int64]:
        """Return how many intervals enclose each one, at most `most`: int64[M]."""
        depth, enclosing = np.zeros(len(self.parent), np.int64), self.parent.copy()
        for _ in range(most):
            inner = np.flatnonzero(enclosing >= 0)
            if len(inner) == 0:
                break
            depth[inner] += 1
            enclosing[inner] = self.parent[enclosing[inner]]
        return depth

    def outermost(self, is_top: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the index of the outermost interval around each one, or of itself at the top: int64[M].

        What `is_top` (bool[M]) counts as one, too, whatever is around it.
        """
        return self._top(self.parent >= 0 if is_top is None else (self.parent >= 0) & ~is_top)

    def outermost_alike(self, kind: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the outermost of the parents of the same kind (int64[M]) that directly enclose each one, or itself.

        An op that calls another overload of itself is one call: `aten::sort` is recorded inside `aten::sort`.
        """
        return self._top((self.parent >= 0) & (np.r_[kind, -1][self.parent] == kind))

    def _top(self, is_inner: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the interval in which a walk from each one ends that goes up from those inside: int64[M]."""
        top = np.where(is_inner, self.parent, np.arange(len(self.parent)))
        while (is_below := top[top] != top).any():
            top[is_below] = top[top[is_below]]
        return top


def nest(events: Events, rows: NDArray[np.int64]) -> Nest:
    """Return the nest of some rows of one thread."""
    start, end = events.ts[rows], events.ts[rows] + events.dur[rows]
    order = np.argsort(start, kind="stable")
    same = np.diff(start[order]) == 0
    is_tied = np.flatnonzero(np.r_[False, same] | np.r_[same, False][: len(rows)])
    tied = order[is_tied]  # few: most starts differ
    order[is_tied] = tied[np.lexsort((rows[tied], -end[tied], start[tied]))]
    rows, start, end = rows[order], start[order], end[order]
    return Nest(rows, start, end, _nearest_earlier(end, np.less))


def _nearest_earlier(ends: NDArray[np.int64], skips: np.ufunc) -> NDArray[np.int64]:
    """Return the index of the nearest earlier end for which skips(that end, its end) is False: int64[M], -1 if none.

    With np.less: the nearest earlier end that is not smaller. By pointer jumping, except for ends that skip even the
    latest end so far.
    """
    skips_all = np.r_[True, skips(np.maximum.accumulate(ends)[:-1], ends[1:])][: len(ends)]
    before = np.where(skips_all, -1, np.arange(-1, len(ends) - 1))
    pending = 1 + np.flatnonzero(skips(ends[:-1], ends[1:]) & ~skips_all[1:])
    while len(pending):
        earlier = before[before[pending]]
        before[pending] = earlier
        pending = pending.compress((earlier >= 0) & skips(ends[earlier], ends[pending]))
    return before


@once_per_trace
def tracks(trace: Trace) -> NDArray[np.int64]:
    """Return the track of each row of Events, one number for each (pid, tid): int64[N]."""
    events = trace.events
    number: NDArray[np.int64] = events.pid.astype(np.int64)
    number *= len(events.strings)
    number += events.tid
    return number


@once_per_trace
def host_ops(trace: Trace) -> ThreadNests:
    """Return the nests of the CPU ops."""
    return thread_nests(trace, trace.events.rows(Category.CPU_OP))


@once_per_trace
def python_frames(trace: Trace) -> ThreadNests:
    """Return the nests of the Python frames."""
    return thread_nests(trace, trace.events.rows(Category.PYTHON))


def thread_nests(trace: Trace, rows: NDArray[np.int64]) -> ThreadNests:
    """Return the nests of some rows by track, in ascending order of the tracks."""
    return ThreadNests((track, nest(trace.events, rows[index])) for track, index in by_value(tracks(trace)[rows]))


class ThreadNests(dict[int, Nest]):
    """Nests of some rows, one of each thread, by track."""

    def on(self, track: NDArray[np.int64]) -> Iterator[tuple[Nest, NDArray[np.int64]]]:
        """Yield each nest with those of K instants that are on its thread, `track` int64[K]: (nest, which of them)."""
        for number, which in by_value(track):
            if (of_thread := self.get(number)) is not None:
                yield of_thread, which

    def rows_at(self, track: NDArray[np.int64], time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the innermost row that is open on each thread at each time: int64[K], -1 without one."""
        row = np.full(len(track), -1)
        for ops, which in self.on(track):
            row[which] = np.r_[ops.rows, -1][ops.innermost_at(time_ns[which])]
        return row


@frozen(eq=False)
class Surroundings:
    """K host rows with the ops, annotations and Python frames around them.

    `host_rows` int64[K] into Events; `rows` int64[R] into Events, all that can enclose them.
    """

    trace: Trace
    host_rows: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def start_ns(self) -> NDArray[np.int64]:
        """int64[K] ns: start of each host row."""
        return self.trace.events.ts[self.host_rows]

    def named(self, pattern: re.Pattern[str], *, ops_only: bool = False) -> NDArray[np.int64]:
        """Return the ops, annotations and Python frames whose name matches, or only the ops: rows of Events."""
        rows = self.rows[matching(self.trace.events, self.rows, pattern)]
        return rows[self.trace.events.category[rows] == Category.CPU_OP] if ops_only else rows

    def within(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Return whether a row whose name matches is open on the thread of each host row: bool[K]."""
        return self.within_rows(self.named(pattern))

    def within_rows(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether one of these rows is open on the thread of each host row: bool[K]."""
        events, row_track = self.trace.events, tracks(self.trace)
        inside, of_track = np.zeros(len(self.host_rows), np.bool_), dict(by_value(row_track[rows]))
        for track, on_track in by_value(row_track[self.host_rows]):
            if track not in of_track:
                continue
            enclosing = rows[of_track[track]]
            inside[on_track] = contains(spans(events.ts[enclosing], events.end[enclosing]), self.start_ns[on_track])
        return inside

    def within_other_op(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Return whether an op whose name does not match is open on the thread of each host row: bool[K]."""
        is_op = self.trace.events.category[self.rows] == Category.CPU_OP
        return self.within_rows(self.rows[is_op & ~matching(self.trace.events, self.rows, pattern)])

    def last_end_before(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the latest end of these rows up to each start, on any thread: int64[K] ns, else the minimum."""
        ends = ascending(self.trace.events.end[rows])
        return np.asarray(np.r_[np.iinfo(np.int64).min, ends][np.searchsorted(ends, self.start_ns, "right")])

    def last_start_before(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the latest start of these rows up to each start, on any thread: int64[K] ns, else the minimum."""
        starts = ascending(self.trace.events.ts[rows])
        return np.asarray(np.r_[np.iinfo(np.int64).min, starts][np.searchsorted(starts, self.start_ns, "right")])

    def next_start_after(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the earliest start of these rows from each start on, on any thread: int64[K] ns, else the maximum."""
        starts = ascending(self.trace.events.ts[rows])
        return np.asarray(np.r_[starts, np.iinfo(np.int64).max][np.searchsorted(starts, self.start_ns, "left")])


def surroundings(trace: Trace, host_rows: NDArray[np.int64]) -> Surroundings:
    """Return the context of some host rows."""
    return Surroundings(trace, host_rows, trace.events.rows(Category.CPU_OP, Category.ANNOTATION, Category.PYTHON))


@once_per_trace
def host_boundaries(trace: Trace) -> NDArray[np.int64]:
    """Return the starts and ends of all ops, annotations and Python frames: int64[K] ns, ascending."""
    events = trace.events
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION, Category.PYTHON)
    start = events.ts[rows]
    return sorted_unique(start, start + events.dur[rows])
