"""A source of bytes to the columns of its events, by either reader.

The Python reader (msgspec, numpy) is the reference: it alone decides what damaged text means. The native reader,
`_scan.cpp`, turns clean text into columns, eight times as fast; if it was not built the reference reads all. Where the
scanner meets text that it does not handle, the reference (event_windows.py, columns.py) reads a stretch from the start
of that event, and its rows are appended to the native columns. Archives are decompressed by another thread.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from math import inf
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.errors import UsageFault
from traceq.frozen import frozen
from traceq.kineto.categories import BY_NAME, categorise
from traceq.kineto.collective_messages import COUNT_LIMIT, MessageRows
from traceq.kineto.columns import DTYPES, NO_COLUMNS, ColumnBuilder, TrackNames
from traceq.kineto.decompression import ByteSource, ReadBuffer
from traceq.kineto.event_windows import Document
from traceq.kineto.limits import check_size
from traceq.kineto.raw_events import Interner, RawArgs, RawEvent
from traceq.model import SIDE_TABLES, Caveat, Events, select_rows, side_table

_SKEW = 3 * 64  # columns that all start on a page boundary would compete for the same few lines of the L1 cache
_LARGE = 8 << 20  # from this size on 2 MB pages: faulting in 4 KB pages takes a tenth of the reading time


class _GrowableColumns:
    """Columns of `capacity` rows with these dtypes; `views` are their bytes, valid until they grow."""

    def __init__(self, dtypes: Mapping[str, type], capacity: int) -> None:
        self._dtypes = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
        self.capacity = capacity
        self._blocks = [_block(size) for size in self._sizes()]
        self.views = self._views()

    def _sizes(self) -> list[int]:
        return [_SKEW * index + self.capacity * dtype.itemsize + 1 for index, dtype in enumerate(self._dtypes.values())]

    def _views(self) -> tuple[memoryview, ...]:
        return tuple(memoryview(block)[_SKEW * index :] for index, block in enumerate(self._blocks))

    def grow(self, capacity: int) -> None:
        """Increase the capacity to this many rows."""
        for view in self.views:
            view.release()
        self.capacity = capacity
        self._blocks = [_resized(block, size) for block, size in zip(self._blocks, self._sizes(), strict=True)]
        self.views = self._views()

    def rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Return rows by column name: views of the columns' memory, which cannot grow while they are in use."""
        return {
            name: np.frombuffer(block, dtype, stop, _SKEW * index)[start:]
            for index, ((name, dtype), block) in enumerate(zip(self._dtypes.items(), self._blocks, strict=True))
        }


_NUMBERED = tuple(column.name for column in fields(Events) if column.name not in NO_COLUMNS)


def _sources() -> list[Path]:
    """Return the C++ files beside this one, in the order of setup.py; none unless installed from a checkout."""
    here = Path(__file__).parent
    return [*here.glob("_scan.cpp"), *sorted(here.glob("scanner/*.hpp"))]


def _is_built_from(sources: Sequence[Path]) -> bool:
    """Return whether the extension was built from these files, which may have changed in a checkout since."""
    digest = crc32(b"".join(source.read_bytes() for source in sources))
    return not sources or getattr(_scan, "SOURCES", "") == f"{digest:08x}"


MISSING = ""
"""Reason why the native reader is not available; "" if it is."""
try:
    from traceq.kineto import _scan
except ImportError as fault:
    MISSING = str(fault)
else:
    if _scan.COLUMNS.split() != [*_NUMBERED, *NO_COLUMNS] or not _is_built_from(_sources()):
        MISSING = "it was built from other sources; install traceq again"

_TEXTS = ("name", "cat", "pid", "tid", "grid", "shapes", "types", "strides", "inputs")
_decode_args = msgspec.json.Decoder(RawArgs).decode
_decode_event = msgspec.json.Decoder(RawEvent).decode
_decode_text = msgspec.json.Decoder(str).decode


def _category(cat: str, name: str | None) -> int:
    """Return an event's category code; BY_NAME if its name, None at first, is needed to decide."""
    if name is None and cat in BY_NAME:
        return _scan.BY_NAME
    return int(categorise(cat, name or ""))


def _decoded_utf8(text: bytes) -> bytes:
    """Return a JSON string as UTF-8. Raises if it is not one, or holds a lone surrogate."""
    return _decode_text(text).encode()


class NativeColumns:
    """Native columns with side tables that Python fills: the native counterpart of ColumnBuilder."""

    PADDING: int = 0 if MISSING else _scan.PADDING
    MORE: int = 0 if MISSING else _scan.MORE

    def __init__(self, capacity: int) -> None:
        self.num_rows = self.num_dropped = self.num_counters = 0
        self.names = TrackNames()
        self._scanner = _scan.Scanner(_category, _decoded_utf8)
        self._table = _GrowableColumns({name: DTYPES[name] for name in _NUMBERED}, capacity)
        self._message_rows: list[NDArray[np.int64]] = []
        self._tables: dict[str, list[Any]] = {name: [] for name in SIDE_TABLES}

    def scan(self, text: mmap.mmap | bytearray, start: int, stop: int, *, comma_due: bool) -> tuple[int, int, bool]:
        """Add the events of text[start:stop], which PADDING follows; return (status, position, is a comma due)."""
        status, position = _scan.FULL, start
        while status == _scan.FULL:
            self._ensure_capacity(1)
            status, position, self.num_rows, comma_due = self._scanner.scan(
                text, position, stop, comma_due, self._table.views, self.num_rows
            )
        return status, position, comma_due

    def _ensure_capacity(self, rows: int) -> None:
        if self.num_rows + rows > self._table.capacity:
            self._table.grow(2 * (self.num_rows + rows))

    def add(self, window: Sequence[RawEvent]) -> None:
        """Append a window of events that the reference has read."""
        self._add_side_tables()
        part = ColumnBuilder(names=self.names)
        part.add(window)
        self.num_dropped, self.num_counters = self.num_dropped + part.dropped, self.num_counters + part.num_counters
        events, first = part.build(), self.num_rows
        ids = self._interned(events.strings)
        self._append({name: getattr(events, name) for name in _NUMBERED}, len(events), ids)
        for name, parts in self._tables.items():
            parts.append(_renumbered(getattr(events, name), first, ids))

    def _append(self, columns: dict[str, NDArray[Any]], count: int, ids: NDArray[np.int32]) -> None:
        self._ensure_capacity(count)
        for name, column in self._table.rows(self.num_rows, self.num_rows + count).items():
            column[:] = ids[columns[name]] if name in _TEXTS else columns[name]
        self.num_rows += count

    def _add_side_tables(self) -> None:
        """Move the scanner's side tables so far to the end of ours."""
        num_dropped, num_counters, named, message_rows, *tables = self._scanner.take()
        self.num_dropped, self.num_counters = self.num_dropped + num_dropped, self.num_counters + num_counters
        for text in named:
            self.names.note(_decode_event(text))
        self._message_rows.append(np.frombuffer(message_rows, np.int64).reshape(-1, 3).copy())
        for (name, kind), numbers in zip([*SIDE_TABLES.items()][1:], tables, strict=True):
            columns = np.frombuffer(numbers, np.int64).reshape(-1, len(fields(kind)))
            self._tables[name].append(side_table(kind, columns))

    def _interned(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Return int32[N + 1] string ids of N texts; the last is -1, so that indexing by -1 gives -1."""
        return np.array(
            [*(self._scanner.intern(text.encode("utf-8", "surrogatepass")) for text in texts), -1], np.int32
        )

    def _native_messages(self) -> Any:
        """Return the messages of calls that the scanner has read; each distinct one is decoded once."""
        texts, distinct = Interner(), MessageRows()
        for number, message in enumerate(self._scanner.messages()):
            args, _, name = message.partition(b"\0")
            distinct.add(number, name.decode(), _decode_args(args), texts)
        row, number, sequence = np.concatenate(self._message_rows).T
        messages = _renumbered(select_rows(distinct.build(), number), 0, self._interned(tuple(texts)))
        sequence = np.where((sequence >= 0) & (sequence < COUNT_LIMIT), sequence, -1)
        return replace(messages, row=row.copy(), sequence=sequence)

    def build(self) -> Events:
        """Return all rows so far; the scanner must not be used afterwards."""
        self._add_side_tables()
        self._tables["messages"].insert(0, self._native_messages())
        columns: dict[str, Any] = {name: _by_row(_concat(parts)) for name, parts in self._tables.items()}
        columns |= self._table.rows(0, self.num_rows)
        return Events(strings=tuple(self._scanner.strings()), **columns)


def _renumbered(table: Any, first: int, ids: NDArray[np.int32]) -> Any:
    """Return a side table of a part that starts at row `first`, with its string ids mapped by `ids`."""
    columns = {each.name: getattr(table, each.name) for each in fields(table)}
    texts = {name: ids[column] for name, column in columns.items() if column.dtype == np.int32}
    return replace(table, **texts, **({"row": table.row + first} if "row" in columns else {}))


def _concat(parts: Sequence[Any]) -> Any:
    columns = [each.name for each in fields(parts[0])]
    return replace(parts[0], **{name: np.concatenate([getattr(part, name) for part in parts]) for name in columns})


def _by_row(table: Any) -> Any:
    """Return a side table by the events of its rows; allocations, which are of none, as they are in the file."""
    return select_rows(table, np.argsort(table.row, kind="stable")) if hasattr(table, "row") else table


def _block(size: int) -> mmap.mmap:
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without huge pages
            block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _resized(block: mmap.mmap, size: int) -> mmap.mmap:
    try:
        block.resize(size)
    except SystemError:  # not Linux: pages cannot be moved
        larger = _block(size)
        with memoryview(block) as old:
            larger[: len(old)] = old
        return larger
    return block


@frozen
class Damage:
    """Lost and repaired parts of a file, as byte positions in the uncompressed text.

    `commas_at`: positions after a missing or an extra comma. `num_dropped` counts complete events without a usable
    time.
    """

    truncated_at: int | None = None
    skipped_at: tuple[int, ...] = ()
    mended_at: tuple[int, ...] = ()
    commas_at: tuple[int, ...] = ()
    broken_metadata_at: int | None = None
    num_dropped: int = 0

    @classmethod
    def of(cls, document: Document, num_dropped: int) -> Damage:
        """Return the damage that a document has recorded once it was read to its end."""
        return cls(
            document.truncated_at,
            skipped_at=tuple(document.skipped_at),
            mended_at=tuple(document.mended_at),
            commas_at=tuple(document.commas_at),
            broken_metadata_at=document.broken_metadata_at,
            num_dropped=num_dropped,
        )


@frozen
class Scan:
    """Contents of one file: events as columns, names of its tracks, the raw JSON of its metadata, its damage.

    `num_counters` samples of counters, as of hardware, are not read.
    """

    events: Events
    names: TrackNames
    metadata: Mapping[str, msgspec.Raw]
    damage: Damage
    num_counters: int


_FIRST_ROWS, _BYTES_PER_ROW = 1 << 16, 256
_MOST_FIRST_ROWS = 1 << 22  # of a trace of 1 GB, 0.4 GB; what a larger size promises may not be there
_LONG = 4 << 20  # events from this size on are left to the reference


def reader() -> str:
    """Return `native` or `python`: the one that TRACEQ_READER names, else the native one if it was built."""
    name = os.environ.get("TRACEQ_READER") or ("python" if MISSING else "native")
    if name not in ("native", "python"):
        raise UsageFault(f"TRACEQ_READER={name}: no such reader; expected native or python")
    if name == "native" and MISSING:
        raise UsageFault(f"TRACEQ_READER=native: the native reader was not built ({MISSING})")
    return name


def scan(source: ByteSource) -> Scan:
    """Read a source to its end. Raises UnreadableInput if it is not a trace."""
    if reader() == "native":
        return _scan_natively(source)
    document, columns = Document(source), ColumnBuilder()
    for window in document.windows():
        columns.add(window)
        check_size(source.path, columns.num_rows)
    damage = Damage.of(document, columns.dropped)
    return Scan(columns.build(), columns.names, document.metadata, damage, columns.num_counters)


def _scan_natively(source: ByteSource) -> Scan:
    """Read a source to its end, like `scan`. Raises UnreadableInput if it is not a trace."""
    buffer = ReadBuffer(source, padding=NativeColumns.PADDING)
    try:
        document = Document(buffer)
        columns = NativeColumns(min(max(_FIRST_ROWS, source.size_bytes // _BYTES_PER_ROW), _MOST_FIRST_ROWS))
        document.open()
        buffer.unread(document.release())
        _read_events(buffer, document, columns)
    finally:
        buffer.close()
    events = columns.build()
    damage = Damage.of(document, columns.num_dropped)
    return Scan(events, columns.names, document.metadata, damage, columns.num_counters)


def _read_events(buffer: ReadBuffer, document: Document, columns: NativeColumns) -> None:
    comma_due = False
    while not document.done:
        status, position, comma_due = columns.scan(buffer.buffer, buffer.start, buffer.stop, comma_due=comma_due)
        buffer.skip_to(position)
        check_size(buffer.path, columns.num_rows)
        if status == NativeColumns.MORE and buffer.stop - buffer.start < _LONG and buffer.read_more():
            continue
        comma_due = _read_by_reference(buffer, document, columns, comma_due=comma_due)


def _read_by_reference(buffer: ReadBuffer, document: Document, columns: NativeColumns, *, comma_due: bool) -> bool:
    """Read with the reference until past the text that stopped the scanner; return whether a comma is due there."""
    start = buffer.position
    document.resume(start, comma_due=comma_due)
    while not document.done and document.position == start:
        for window in document.advance():
            columns.add(window)
    if not document.done:
        buffer.unread(document.release())
    return document.comma_due


def damage_caveats(damage: Damage, fault: str, num_events: int) -> list[tuple[float, Caveat]]:
    """Return a caveat per kind of damage, each with the byte position of its first occurrence."""
    caveats: list[tuple[float, Caveat]] = []
    if (byte := damage.truncated_at) is not None:
        reason = f" ({fault})" if fault else ""
        text = f"byte {byte}: the file ends early{reason}; {num_events:,} of its events were read"
        caveats.append((byte, Caveat("truncated", text)))
    elif fault:
        text = f"the archive is damaged at its end ({fault}); its JSON is complete, with {num_events:,} events"
        caveats.append((inf, Caveat("damaged_archive", text)))
    for code, positions, what in (
        ("malformed_events", damage.skipped_at, "events are not valid JSON and were skipped"),
        ("mended_events", damage.mended_at, "events with NaN, Infinity or broken Unicode were repaired"),
        ("misplaced_commas", damage.commas_at, "missing or extra commas"),
    ):
        if positions:
            caveats.append((positions[0], Caveat(code, f"byte {positions[0]}: {len(positions):,} {what}")))
    if (byte := damage.broken_metadata_at) is not None:
        text = f"byte {byte}: the metadata is not valid JSON; its readable part is used"
        caveats.append((byte, Caveat("malformed_metadata", text)))
    if damage.num_dropped:
        text = f"{damage.num_dropped:,} events have no usable time and were dropped"
        caveats.append((inf, Caveat("dropped_events", text)))
    return caveats
