"""What stands around some host rows: what is open on their threads, what ended before them, what follows."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import names_of
from traceq.facts.events.nesting import tracks
from traceq.intervals import contains, sorted_unique, spans
from traceq.model import Category, Trace

__all__ = ["Surroundings", "surroundings"]


@dataclass(frozen=True, slots=True, eq=False)
class Surroundings:
    """K host rows `of`, and the `rows` that can enclose them; `name_of_row` numbers `names`, the distinct ones."""

    trace: Trace
    of: NDArray[np.int64]
    rows: NDArray[np.int64]
    names: tuple[str, ...]
    name_of_row: NDArray[np.int64]

    @property
    def at(self) -> NDArray[np.int64]:
        """int64[K] ns: when each began."""
        return self.trace.events.ts[self.of]

    def named(self, pattern: re.Pattern[str], *, ops_only: bool = False) -> NDArray[np.int64]:
        """Ops, annotations and Python frames whose name matches; only ops on demand."""
        hits = np.fromiter((bool(pattern.search(name)) for name in self.names), np.bool_, len(self.names))
        found = self.rows[np.flatnonzero(hits[self.name_of_row])] if hits.any() else self.rows[:0]
        return found[self.trace.events.category[found] == Category.CPU_OP] if ops_only else found

    def within(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """bool[K]: a row whose name matches is open on its thread."""
        return self.within_rows(self.named(pattern))

    def within_rows(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[K]: one of these rows is open on its thread."""
        events, of_row = self.trace.events, tracks(self.trace)
        inside = np.zeros(len(self.of), np.bool_)
        for track in sorted_unique(of_row[self.of]).tolist():
            mine, around = of_row[self.of] == track, rows[of_row[rows] == track]
            inside[mine] = contains(spans(events.ts[around], events.end[around]), self.at[mine])
        return inside

    def within_an_op_besides(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """bool[K]: an op whose name does not match is open on its thread."""
        ops = self.rows[self.trace.events.category[self.rows] == Category.CPU_OP]
        return self.within_rows(np.setdiff1d(ops, self.named(pattern, ops_only=True), assume_unique=True))

    def since(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[K] ns: the latest end of these rows before each, on any thread; long ago without one."""
        ends = np.sort(self.trace.events.end[rows])
        return np.asarray(np.r_[np.iinfo(np.int64).min, ends][np.searchsorted(ends, self.at, "right")])

    def until(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[K] ns: the earliest start of these rows from each on, on any thread; far ahead without one."""
        starts = np.sort(self.trace.events.ts[rows])
        return np.asarray(np.r_[starts, np.iinfo(np.int64).max][np.searchsorted(starts, self.at, "left")])


def surroundings(trace: Trace, of: NDArray[np.int64]) -> Surroundings:
    """What stands around some rows of the host."""
    events = trace.events
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION, Category.PYTHON)
    names, name_of_row = names_of(events, rows)
    return Surroundings(trace, of, rows, tuple(events.strings[name] for name in names.tolist()), name_of_row)
