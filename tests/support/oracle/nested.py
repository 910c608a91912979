"""Rows of one thread that lie within each other."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from .phases import Thread
from .reader import Event

__all__ = ["Nested", "nested"]


class Nested:
    """Rows of one thread, and those of them that are open at an instant."""

    def __init__(self, rows: Iterable[Event]) -> None:
        self.rows = sorted(rows, key=lambda e: (e.start, -e.end, e.row))
        self.starts = [row.start for row in self.rows]
        self.parents: list[int] = []
        open_rows: list[int] = []
        for index, row in enumerate(self.rows):
            while open_rows and self.rows[open_rows[-1]].end < row.end:
                open_rows.pop()
            self.parents.append(open_rows[-1] if open_rows else -1)
            open_rows.append(index)
        self.index = {row.row: index for index, row in enumerate(self.rows)}

    def innermost(self, instant: int) -> Event | None:
        """The one that began last of those that are open."""
        return next(iter(self.around(instant)), None)

    def around(self, instant: int) -> list[Event]:
        """Those that are open, innermost first."""
        index = bisect_right(self.starts, instant) - 1
        while index >= 0 and self.rows[index].end <= instant:
            index = self.parents[index]
        return self._upwards(index)

    def around_row(self, row: Event) -> list[Event]:
        """A row, and those that enclose it."""
        return self._upwards(self.index[row.row])

    def parent(self, row: Event) -> Event | None:
        """The row that encloses another one."""
        return next(iter(self.around_row(row)[1:]), None)

    def _upwards(self, index: int) -> list[Event]:
        rows = []
        while index >= 0:
            rows.append(self.rows[index])
            index = self.parents[index]
        return rows


def nested(events: Iterable[Event]) -> dict[Thread, Nested]:
    """By thread."""
    by_thread: dict[Thread, list[Event]] = defaultdict(list)
    for event in events:
        by_thread[event.thread].append(event)
    return {thread: Nested(rows) for thread, rows in by_thread.items()}
