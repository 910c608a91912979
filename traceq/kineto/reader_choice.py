"""A source of bytes to the columns of its events, by either reader.

The Python reader (msgspec, numpy) is the reference: it alone decides what damaged text means. The native reader,
`_scan.cpp`, turns clean text into columns, eight times as fast; if it was not built the reference reads all. Where the
scanner meets text that it does not handle, the reference (event_windows.py, columns.py) reads a stretch from the start
of that event, and its rows are appended to the native columns. Archives are decompressed by another thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import inf

import msgspec

from traceq.errors import UsageFault
from traceq.frozen import frozen
from traceq.kineto.columns import ColumnBuilder, TrackNames
from traceq.kineto.decompression import ByteSource
from traceq.kineto.event_windows import Document
from traceq.kineto.limits import check_size
from traceq.kineto.native_columns import MISSING, NativeColumns
from traceq.kineto.read_buffer import ReadBuffer
from traceq.model import Caveat, Events


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
