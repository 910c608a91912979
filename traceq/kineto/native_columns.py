"""Columns that the native scanner fills, and the side tables that Python fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from hashlib import sha256
from mmap import mmap
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.kineto.categories import BY_NAME, categorise
from traceq.kineto.columns import DTYPES, SIDE_TABLES, ColumnBuilder
from traceq.kineto.growable_columns import GrowingColumns
from traceq.kineto.interning import Interner
from traceq.kineto.messages import MOST, MessageRows
from traceq.kineto.raw_events import RawArgs, RawEvent
from traceq.model import Allocations, CallStacks, Events, EventWaits, Messages, Thread

_NUMBERED = tuple(column.name for column in fields(Events) if column.name not in SIDE_TABLES)


def _sources() -> list[Path]:
    """C++ files beside this one, in the order of setup.py; none where traceq was not installed from a checkout."""
    here = Path(__file__).parent
    return [*here.glob("_scan.cpp"), *sorted(here.glob("scanner/*.hpp"))]


def _is_of(sources: Sequence[Path]) -> bool:
    """The extension was built from these files, which a checkout may have changed since."""
    digest = sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return not sources or getattr(_scan, "SOURCES", "") == digest


MISSING = ""
"""Why there is no native reader; empty where there is one."""
try:
    from traceq.kineto import _scan
except ImportError as fault:
    MISSING = str(fault)
else:
    if _scan.COLUMNS.split() != [*_NUMBERED, *SIDE_TABLES] or not _is_of(_sources()):
        MISSING = "it was built from other sources; install traceq again"

__all__ = ["MISSING", "NativeColumns"]

_TEXTS = ("name", "cat", "pid", "tid", "grid", "shapes", "types")
_MESSAGE_TEXTS = ("name", "dtype", "group", "ranks")
_decode_args = msgspec.json.Decoder(RawArgs).decode
_decode_event = msgspec.json.Decoder(RawEvent).decode
_decode_text = msgspec.json.Decoder(str).decode


def _category(cat: str, name: str | None) -> int:
    """Of an event; BY_NAME where it takes its name to tell, which is None at first."""
    if name is None and cat in BY_NAME:
        return _scan.BY_NAME
    return int(categorise(cat, name or ""))


def _plain(text: bytes) -> bytes:
    """UTF-8 of a JSON string; raises where it is none, or a lone surrogate."""
    return _decode_text(text).encode()


class NativeColumns:
    """Native columns, and the side tables that Python fills: what ColumnBuilder is to the reference."""

    PADDING: int = 0 if MISSING else _scan.PADDING
    MORE: int = 0 if MISSING else _scan.MORE

    def __init__(self, room: int) -> None:
        self.num_rows = self.num_dropped = 0
        self._threads: dict[tuple[str, str], str] = {}
        self._scanner = _scan.Scanner(_category, _plain)
        self._table = GrowingColumns({name: DTYPES[name] for name in _NUMBERED}, room)
        self._sent: list[NDArray[np.int64]] = []
        self._messages: list[Messages] = []
        self._stacks: list[CallStacks] = []
        self._allocations: list[Allocations] = []
        self._waits: list[EventWaits] = []

    @property
    def threads(self) -> tuple[Thread, ...]:
        """Those that have names."""
        return tuple(Thread(pid, tid, name) for (pid, tid), name in self._threads.items())

    def scan(self, text: mmap | bytearray, start: int, stop: int, *, comma_due: bool) -> tuple[int, int, bool]:
        """Add the events of text[start:stop], PADDING behind it: (verdict, how far it came, whether a comma is due)."""
        verdict, at = _scan.FULL, start
        while verdict == _scan.FULL:
            self._make_room(1)
            verdict, at, self.num_rows, comma_due = self._scanner.scan(
                text, at, stop, comma_due, self._table.views, self.num_rows
            )
        return verdict, at, comma_due

    def _make_room(self, rows: int) -> None:
        if self.num_rows + rows > self._table.room:
            self._table.grow(2 * (self.num_rows + rows))

    def add(self, window: Sequence[RawEvent]) -> None:
        """Append a window of the reference."""
        self._take_side_tables(self._scanner)
        part = ColumnBuilder(threads=self._threads)
        part.add(window)
        self.num_dropped += part.dropped
        events, first = part.build(), self.num_rows
        ids = self._interned(events.strings)
        self._append({name: getattr(events, name) for name in _NUMBERED}, len(events), ids)
        self._messages.append(_shifted(events.messages, first, ids))
        self._stacks.append(CallStacks(events.stacks.row + first, ids[events.stacks.text]))
        pid, tid = ids[events.allocations.pid], ids[events.allocations.tid]
        self._allocations.append(replace(events.allocations, pid=pid, tid=tid))
        self._waits.append(replace(events.waits, row=events.waits.row + first))

    def take(self, part: NativeColumns) -> None:
        """Append the rows of another one, always of the same, which has none afterwards."""
        self._take_side_tables(self._scanner)
        strings, messages = (np.frombuffer(ids, np.int32) for ids in self._scanner.adopt(part._scanner))
        ids = np.append(strings, np.int32(-1))
        self._take_side_tables(part._scanner, self.num_rows, ids, messages)
        self._append(part._table.rows(0, part.num_rows), part.num_rows, ids)
        part.num_rows = 0

    def _append(self, columns: dict[str, NDArray[Any]], count: int, ids: NDArray[np.int32]) -> None:
        self._make_room(count)
        for name, column in self._table.rows(self.num_rows, self.num_rows + count).items():
            column[:] = ids[columns[name]] if name in _TEXTS else columns[name]
        self.num_rows += count

    def _take_side_tables(
        self,
        scanner: _scan.Scanner,
        first: int = 0,
        ids: NDArray[np.int32] | None = None,
        messages: NDArray[np.int32] | None = None,
    ) -> None:
        """What a scanner found so far comes before what is found next; its rows count from `first`."""
        num_dropped, threads, *tables = scanner.take()
        self.num_dropped += num_dropped
        noted = ColumnBuilder(threads=self._threads)
        for text in threads:
            noted.note_thread(_decode_event(text))
        sent, stacks, allocations, waits = (
            np.frombuffer(table, np.int64).reshape(-1, width).copy()
            for table, width in zip(tables, (3, 2, 9, 3), strict=True)
        )
        for table in (sent, stacks, waits):
            table[:, 0] += first
        if ids is not None and messages is not None:
            sent[:, 1], stacks[:, 1] = messages[sent[:, 1]], ids[stacks[:, 1]]
            allocations[:, 1:3] = ids[allocations[:, 1:3]]
        self._sent.append(sent)
        self._stacks.append(CallStacks(stacks[:, 0], stacks[:, 1].astype(np.int32)))
        self._allocations.append(Allocations.of(allocations))
        self._waits.append(EventWaits.of(waits))

    def _interned(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Numbers of some texts; the last one is that of -1, which stays."""
        return np.array(
            [*(self._scanner.intern(text.encode("utf-8", "surrogatepass")) for text in texts), -1], np.int32
        )

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
        self._take_side_tables(self._scanner)
        messages = _joined(Messages, [self._native_messages(), *self._messages])
        return Events(
            messages=_in_order(messages),
            stacks=_in_order(_joined(CallStacks, self._stacks)),
            allocations=_joined(Allocations, self._allocations),
            waits=_in_order(_joined(EventWaits, self._waits)),
            strings=tuple(self._scanner.strings()),
            **self._table.rows(0, self.num_rows),
        )


def _shifted(messages: Messages, first: int, ids: NDArray[np.int32]) -> Messages:
    """Messages of a part that starts at row `first`, its texts numbered anew."""
    texts: dict[str, Any] = {name: ids[getattr(messages, name)] for name in _MESSAGE_TEXTS}
    return replace(messages, row=messages.row + first, **texts)


def _joined(kind: type[Any], parts: Sequence[Any]) -> Any:
    return kind(**{c.name: np.concatenate([getattr(part, c.name) for part in parts]) for c in fields(kind)})


def _taken(table: Any, rows: NDArray[np.int64]) -> Any:
    return type(table)(**{column.name: getattr(table, column.name)[rows] for column in fields(table)})


def _in_order(table: Any) -> Any:
    return _taken(table, np.argsort(table.row, kind="stable"))
