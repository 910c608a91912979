"""The native reader: clean text goes from bytes to columns in `_scan.cpp`, everything else through the reference.

Where the scanner meets what it will not decide, the reference (document.py, columns.py) reads a stretch from the start
of that event, and its rows are appended to the native columns. An archive is unpacked by a thread of the tape's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.kineto.categories import BY_NAME, categorise
from traceq.kineto.columns import DTYPES, SIDE_TABLES, ColumnBuilder
from traceq.kineto.document import Document
from traceq.kineto.events import RawArgs, RawEvent
from traceq.kineto.growing import GrowingColumns
from traceq.kineto.interning import Interner
from traceq.kineto.messages import MOST, MessageRows
from traceq.kineto.scanned import Damage, Scan, check_size
from traceq.kineto.source import Source
from traceq.kineto.tape import Tape
from traceq.model import Allocations, CallStacks, Events, EventWaits, Messages, Thread

_NUMBERED = tuple(column.name for column in fields(Events) if column.name not in SIDE_TABLES)

MISSING = ""
"""Why there is no native reader; empty where there is one."""
try:
    from traceq.kineto import _scan
except ImportError as fault:
    MISSING = str(fault)
else:
    if getattr(_scan, "COLUMNS", "").split() != [*_NUMBERED, *SIDE_TABLES]:
        MISSING = "it was built from other sources; install traceq again"

__all__ = ["MISSING", "scan_natively"]

_TEXTS = ("name", "cat", "pid", "tid", "grid", "shapes", "types")
_MESSAGE_TEXTS = ("name", "dtype", "group", "ranks")
_FIRST_ROWS, _BYTES_PER_ROW = 1 << 16, 256
_LONG = 4 << 20  # an event from here on is the reference's
_decode_args = msgspec.json.Decoder(RawArgs).decode
_decode_event = msgspec.json.Decoder(RawEvent).decode
_decode_text = msgspec.json.Decoder(str).decode


def scan_natively(source: Source) -> Scan:
    """As `scan`. Raises UnreadableInput where the source is no trace."""
    tape = Tape(source, padding=_scan.PADDING)
    try:
        document = Document(tape)
        columns = _Columns(max(_FIRST_ROWS, source.size_bytes // _BYTES_PER_ROW))
        document.open()
        tape.unread(document.release())
        _read_events(tape, document, columns)
    finally:
        tape.close()
    threads = tuple(Thread(pid, tid, name) for (pid, tid), name in columns.threads.items())
    damage = Damage.of(document, source, columns.num_dropped)
    return Scan(columns.build(), threads, document.metadata, damage)


def _read_events(tape: Tape, document: Document, columns: _Columns) -> None:
    comma_due = False
    while not document.done:
        verdict, at, comma_due = columns.scan(tape, comma_due=comma_due)
        tape.skip_to(at)
        check_size(tape.path, columns.num_rows)
        if verdict == _scan.MORE and tape.stop - tape.start < _LONG and tape.more():
            continue
        comma_due = _refer(tape, document, columns, comma_due=comma_due)


def _refer(tape: Tape, document: Document, columns: _Columns, *, comma_due: bool) -> bool:
    """Let the reference read on until it got past what stopped the scanner; whether a comma is due there."""
    start = tape.position
    document.resume(start, comma_due=comma_due)
    while not document.done and document.position == start:
        for window in document.advance():
            columns.add(window)
    if not document.done:
        tape.unread(document.release())
    return document.comma_due


def _category(cat: str, name: str | None) -> int:
    """Of an event; BY_NAME where it takes its name to tell, which is None at first."""
    if name is None and cat in BY_NAME:
        return _scan.BY_NAME
    return int(categorise(cat, name or ""))


def _plain(text: bytes) -> bytes:
    """UTF-8 of a JSON string; raises where it is none, or a lone surrogate."""
    return _decode_text(text).encode()


class _Columns:
    """Native columns, and the side tables that Python fills: what ColumnBuilder is to the reference."""

    def __init__(self, room: int) -> None:
        self.threads: dict[tuple[str, str], str] = {}
        self._scanner = _scan.Scanner(_category, _plain)
        self.num_rows, self._table = 0, GrowingColumns({name: DTYPES[name] for name in _NUMBERED}, room)
        self._dropped = 0
        self._sent: list[NDArray[np.int64]] = []
        self._messages: list[Messages] = []
        self._stacks: list[CallStacks] = []
        self._allocations: list[Allocations] = []
        self._waits: list[EventWaits] = []

    @property
    def num_dropped(self) -> int:
        """Complete events without a usable time."""
        return self._scanner.num_dropped + self._dropped

    def scan(self, tape: Tape, *, comma_due: bool) -> tuple[int, int, bool]:
        """Add the events at hand: (verdict, place in the tape's buffer, whether a comma is due there)."""
        verdict, at = _scan.FULL, tape.start
        while verdict == _scan.FULL:
            if self.num_rows == self._table.room:
                self._table.grow(2 * self.num_rows)
            verdict, at, self.num_rows, comma_due = self._scanner.scan(
                tape.buffer, at, tape.stop, comma_due, self._table.views, self.num_rows
            )
        return verdict, at, comma_due

    def add(self, window: Sequence[RawEvent]) -> None:
        """Append a window of the reference."""
        self._take_side_tables()
        part = ColumnBuilder(threads=self.threads)
        part.add(window)
        self._dropped += part.dropped
        events, first = part.build(), self.num_rows
        self.num_rows += len(events)
        if self.num_rows > self._table.room:
            self._table.grow(2 * self.num_rows)
        ids = self._interned(events.strings)
        for name, column in self._table.rows(first, self.num_rows).items():
            added = getattr(events, name)
            column[:] = _renumbered(added, ids) if name in _TEXTS else added
        self._messages.append(_shifted(events.messages, first, ids))
        self._stacks.append(CallStacks(events.stacks.row + first, _renumbered(events.stacks.text, ids)))
        pid, tid = (_renumbered(texts, ids) for texts in (events.allocations.pid, events.allocations.tid))
        self._allocations.append(replace(events.allocations, pid=pid, tid=tid))
        self._waits.append(replace(events.waits, row=events.waits.row + first))

    def _take_side_tables(self) -> None:
        """What the scanner found so far comes before what the reference finds next."""
        threads, *tables = self._scanner.take()
        noted = ColumnBuilder(threads=self.threads)
        for text in threads:
            noted.note_thread(_decode_event(text))
        sent, stacks, allocations, waits = (
            np.frombuffer(table, np.int64).reshape(-1, width) for table, width in zip(tables, (3, 2, 9, 3), strict=True)
        )
        self._sent.append(sent)
        self._stacks.append(CallStacks(stacks[:, 0], stacks[:, 1].astype(np.int32)))
        self._allocations.append(Allocations.of(allocations))
        self._waits.append(EventWaits.of(waits))

    def _interned(self, texts: Sequence[str]) -> NDArray[np.int32]:
        return np.array([self._scanner.intern(text.encode("utf-8", "surrogatepass")) for text in texts], np.int32)

    def _native_messages(self) -> Messages:
        """Of the calls that the scanner met: each distinct one is interpreted once."""
        texts, distinct = Interner(), MessageRows()
        for number, message in enumerate(self._scanner.messages()):
            args, _, name = message.partition(b"\0")
            distinct.add(number, name.decode(), _decode_args(args), texts)
        row, number, sequence = np.concatenate(self._sent).T
        found = _shifted(_taken(distinct.build(), number), 0, self._interned(tuple(texts)))
        sequence = np.where((sequence >= 0) & (sequence < MOST), sequence, -1)
        return replace(found, row=row.copy(), sequence=sequence)

    def build(self) -> Events:
        """All rows so far. The scanner is spent afterwards."""
        self._take_side_tables()
        messages = _joined(Messages, [self._native_messages(), *self._messages])
        return Events(
            messages=_in_order(messages),
            stacks=_in_order(_joined(CallStacks, self._stacks)),
            allocations=_joined(Allocations, self._allocations),
            waits=_in_order(_joined(EventWaits, self._waits)),
            strings=tuple(self._scanner.strings()),
            **self._table.rows(0, self.num_rows),
        )


def _renumbered(column: NDArray[np.int32], ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """String ids of one table as those of another; `ids` maps them, -1 stays."""
    return np.append(ids, np.int32(-1))[column]


def _shifted(messages: Messages, first: int, ids: NDArray[np.int32]) -> Messages:
    """Messages of a part that starts at row `first`, its texts numbered anew."""
    texts: dict[str, Any] = {name: _renumbered(getattr(messages, name), ids) for name in _MESSAGE_TEXTS}
    return replace(messages, row=messages.row + first, **texts)


def _joined(kind: type[Any], parts: Sequence[Any]) -> Any:
    return kind(**{c.name: np.concatenate([getattr(part, c.name) for part in parts]) for c in fields(kind)})


def _taken(table: Any, rows: NDArray[np.int64]) -> Any:
    return type(table)(**{column.name: getattr(table, column.name)[rows] for column in fields(table)})


def _in_order(table: Any) -> Any:
    return _taken(table, np.argsort(table.row, kind="stable"))
