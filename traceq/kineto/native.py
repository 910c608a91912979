"""The native reader: clean text goes from bytes to columns in `_scan.cpp`, everything else through the reference.

Two threads: one reads and unpacks (tape.py), this one scans. Where the scanner meets what it will not decide, the
reference reads a stretch from the start of that event, and its rows are appended to the native columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.errors import UnreadableInput
from traceq.kineto import document as reference
from traceq.kineto.categories import BY_NAME, categorise
from traceq.kineto.columns import DTYPES, SIDE_TABLES, ColumnBuilder
from traceq.kineto.events import RawArgs, RawEvent
from traceq.kineto.interning import Interner
from traceq.kineto.messages import MessageRows
from traceq.kineto.scanned import Damage, Scan
from traceq.kineto.source import Source
from traceq.kineto.tape import Tape
from traceq.model import Allocations, CallStacks, Events, Messages, Thread

_NUMBERED = tuple(column.name for column in fields(Events) if column.name not in SIDE_TABLES)
"""The columns in the order of the scanner's."""

MISSING = ""
"""Why there is no native reader; empty where there is one."""
try:
    from traceq.kineto import _scan
except ImportError as fault:
    MISSING = str(fault)
else:
    if getattr(_scan, "NUM_COLUMNS", 0) != len(_NUMBERED):
        MISSING = "it was built from other sources; install traceq again"

__all__ = ["MISSING", "scan_natively"]

_TEXTS = ("name", "cat", "pid", "tid", "grid", "shapes")
_MESSAGE_TEXTS = ("name", "dtype", "group", "ranks")
_NO_ARGS = RawArgs()
_decode_args = msgspec.json.Decoder(RawArgs).decode
_decode_event = msgspec.json.Decoder(RawEvent).decode


def scan_natively(source: Source) -> Scan:
    """As `scan`. Raises UnreadableInput where the source is no trace."""
    tape = Tape(source, padding=_scan.PADDING)
    try:
        document, columns = reference.Document(tape), _Columns()
        document.open()
        tape.unread(document.release())
        _read_events(tape, document, columns)
    finally:
        tape.close()
    threads = tuple(Thread(pid, tid, name) for (pid, tid), name in columns.threads.items())
    damage = Damage.of(document, source, columns.num_dropped)
    return Scan(columns.build(), threads, document.metadata, damage)


def _read_events(tape: Tape, document: reference.Document, columns: _Columns) -> None:
    comma_due = False
    while not document.done:
        verdict, at, comma_due = columns.scanner.scan(tape.buffer, tape.start, tape.stop, comma_due)
        tape.skip_to(at)
        columns.take_rare()
        if verdict == _scan.MORE:
            if tape.stop - tape.start > reference.LONGEST:
                raise UnreadableInput(str(tape.path), f"byte {tape.position}: an event longer than 256 MB")
            if tape.more():
                continue
        comma_due = _refer(tape, document, columns, comma_due=comma_due)


def _refer(tape: Tape, document: reference.Document, columns: _Columns, *, comma_due: bool) -> bool:
    """Let the reference read on until it got past what stopped the scanner; whether a comma is due there."""
    start = tape.position
    document.resume(start, comma_due=comma_due)
    while not document.done and document.position == start:
        for window in document.advance():
            columns.add(window)
    if not document.done:
        tape.unread(document.release())
    return document.comma_due


class _Columns:
    """Native columns, and the side tables that Python fills: what ColumnBuilder is to the reference."""

    def __init__(self) -> None:
        self.scanner = _scan.Scanner(categorise, BY_NAME)
        self.threads: dict[tuple[str, str], str] = {}
        self._dropped = 0
        self._texts, self._messages = Interner(), MessageRows()
        self._message_parts: list[Messages] = []
        self._stack_parts: list[CallStacks] = []
        self._allocation_parts: list[Allocations] = []

    @property
    def num_dropped(self) -> int:
        """Complete events without a usable time."""
        return self.scanner.num_dropped + self._dropped

    def take_rare(self) -> None:
        """Interpret the rows that the scanner leaves to Python: names of threads, arguments of collectives."""
        for row, name, text in self.scanner.take_rare():
            if row < 0:
                self._note_thread(_decode_event(text))
            else:
                self._messages.add(
                    row, name, _decode_args(text) if text not in (b"", b"null") else _NO_ARGS, self._texts
                )

    def _note_thread(self, event: RawEvent) -> None:
        noted = ColumnBuilder(threads=self.threads)
        noted.note_thread(event)

    def add(self, window: Sequence[RawEvent]) -> None:
        """Append a window of the reference."""
        part = ColumnBuilder(threads=self.threads)
        part.add(window)
        self._dropped += part.dropped
        events, first = part.build(), self.scanner.num_rows
        ids = self._intern(events.strings)
        columns = [getattr(events, name) for name in _NUMBERED]
        for at, name in enumerate(_NUMBERED):
            if name in _TEXTS:
                columns[at] = _renumbered(columns[at], ids)
        self.scanner.extend([np.ascontiguousarray(column).view(np.uint8) for column in columns])
        self._close_side_tables()
        self._message_parts.append(_shifted(events.messages, first, ids))
        self._stack_parts.append(CallStacks(events.stacks.row + first, _renumbered(events.stacks.text, ids)))
        pid, tid = (_renumbered(texts, ids) for texts in (events.allocations.pid, events.allocations.tid))
        self._allocation_parts.append(replace(events.allocations, pid=pid, tid=tid))

    def _intern(self, texts: Sequence[str]) -> NDArray[np.int32]:
        return np.array(self.scanner.intern([text.encode("utf-8", "surrogatepass") for text in texts]), np.int32)

    def _close_side_tables(self) -> None:
        """What the scanner found so far comes before what the reference finds next."""
        found = np.frombuffer(self.scanner.take_allocations(), np.int64).reshape(-1, len(fields(Allocations)))
        self._allocation_parts.append(Allocations.of(found))
        self._message_parts.append(_shifted(self._messages.build(), 0, self._intern(tuple(self._texts))))
        self._texts, self._messages = Interner(), MessageRows()

    def build(self) -> Events:
        """All rows so far. The scanner is spent afterwards."""
        self._close_side_tables()
        columns, strings, stacks = self.scanner.finish()
        numbered: dict[str, Any] = {
            name: np.frombuffer(column, DTYPES[name]) for name, column in zip(_NUMBERED, columns, strict=True)
        }
        rows = np.array(stacks, np.int64).reshape(-1, 2)
        native = CallStacks(rows[:, 0], rows[:, 1].astype(np.int32))
        return Events(
            strings=tuple(strings),
            messages=_joined(Messages, self._message_parts),
            stacks=_in_order(_joined(CallStacks, [native, *self._stack_parts])),
            allocations=_joined(Allocations, self._allocation_parts),
            **numbered,
        )


def _renumbered(column: NDArray[np.int32], ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """String ids of one table as those of another; `ids` maps them, -1 stays."""
    return np.append(ids, np.int32(-1))[column]


def _shifted(messages: Messages, first: int, ids: NDArray[np.int32]) -> Messages:
    """Messages of a part that starts at row `first`, its texts numbered anew."""
    columns = {column.name: getattr(messages, column.name) for column in fields(Messages)}
    texts = {name: _renumbered(columns[name], ids) for name in _MESSAGE_TEXTS}
    return Messages(**{**columns, **texts, "row": messages.row + first})


def _joined(kind: type[Any], parts: Sequence[Any]) -> Any:
    return kind(**{c.name: np.concatenate([getattr(part, c.name) for part in parts]) for c in fields(kind)})


def _in_order(stacks: CallStacks) -> CallStacks:
    order = np.argsort(stacks.row, kind="stable")
    return CallStacks(stacks.row[order], stacks.text[order])
