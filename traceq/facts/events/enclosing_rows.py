"""Context of host rows: what is open on their threads, what ended before them, what follows."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import unique_names
from traceq.facts.events.nesting import tracks
from traceq.frozen import frozen
from traceq.grouping import by_value
from traceq.intervals import ascending, contains, spans
from traceq.model import Category, Trace


@frozen(eq=False)
class Surroundings:
    """K host rows with the ops, annotations and Python frames around them.

    `host_rows` int64[K] into Events; `rows` int64[R] into Events, all that can enclose them; `names` the distinct names
    of `rows`; `name_index` int64[R] into `names`.
    """

    trace: Trace
    host_rows: NDArray[np.int64]
    rows: NDArray[np.int64]
    names: tuple[str, ...]
    name_index: NDArray[np.int64]

    @property
    def start_ns(self) -> NDArray[np.int64]:
        """int64[K] ns: start of each host row."""
        return self.trace.events.ts[self.host_rows]

    def named(self, pattern: re.Pattern[str], *, ops_only: bool = False) -> NDArray[np.int64]:
        """Return the ops, annotations and Python frames whose name matches, or only the ops: rows of Events."""
        rows = self.rows[np.flatnonzero(self._are_named(pattern))]
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
        return self.within_rows(self.rows[np.flatnonzero(is_op & ~self._are_named(pattern))])

    def _are_named(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Return bool[len(rows)]: the name matches."""
        hits = [number for number, name in enumerate(self.names) if pattern.search(name)]
        if not hits:
            return np.zeros(len(self.rows), np.bool_)
        is_hit = np.zeros(len(self.names), np.bool_)
        is_hit[hits] = True
        return np.asarray(is_hit[self.name_index])

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
    events = trace.events
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION, Category.PYTHON)
    names, name_index = unique_names(events, rows)
    return Surroundings(trace, host_rows, rows, tuple(events.strings[name] for name in names.tolist()), name_index)
