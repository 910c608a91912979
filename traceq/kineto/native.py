"""The native reader: clean text goes from bytes to columns in `_scan.cpp`, everything else through the reference.

Where the scanner meets what it will not decide, the reference (document.py, columns.py) reads a stretch from the start
of that event, and its rows are appended to the native columns. An archive is unpacked by a thread of the tape's.
"""

from __future__ import annotations

from traceq.kineto import native_columns
from traceq.kineto.document import Document
from traceq.kineto.native_columns import NativeColumns
from traceq.kineto.read_buffer import ReadBuffer
from traceq.kineto.scan_result import Damage, Scan, check_size
from traceq.kineto.source import ByteSource
from traceq.kineto.speculative_scan import SpeculativeScan

__all__ = ["MISSING", "scan_natively"]

MISSING = native_columns.MISSING
"""Why there is no native reader; empty where there is one."""

_FIRST_ROWS, _BYTES_PER_ROW = 1 << 16, 256
_LONG = 4 << 20  # an event from here on is the reference's


def scan_natively(source: ByteSource, *, threads: int = 1) -> Scan:
    """As `scan`. Raises UnreadableInput where the source is no trace."""
    tape = ReadBuffer(source, padding=NativeColumns.PADDING, chunks=SpeculativeScan.CHUNKS if threads > 1 else 1)
    try:
        document = Document(tape)
        columns = NativeColumns(max(_FIRST_ROWS, source.size_bytes // _BYTES_PER_ROW))
        document.open()
        tape.unread(document.release())
        with SpeculativeScan(tape, columns, threads) as team:
            _read_events(team, tape, document, columns)
    finally:
        tape.close()
    events = columns.build()
    return Scan(events, columns.threads, document.metadata, Damage.of(document, source, columns.num_dropped))


def _read_events(team: SpeculativeScan, tape: ReadBuffer, document: Document, columns: NativeColumns) -> None:
    comma_due = False
    while not document.done:
        verdict, comma_due = team.scan(comma_due=comma_due)
        check_size(tape.path, columns.num_rows)
        if verdict == NativeColumns.MORE and tape.stop - tape.start < _LONG and tape.more():
            continue
        comma_due = _refer(tape, document, columns, comma_due=comma_due)


def _refer(tape: ReadBuffer, document: Document, columns: NativeColumns, *, comma_due: bool) -> bool:
    """Let the reference read on until it got past what stopped the scanner; whether a comma is due there."""
    start = tape.position
    document.resume(start, comma_due=comma_due)
    while not document.done and document.position == start:
        for window in document.advance():
            columns.add(window)
    if not document.done:
        tape.unread(document.release())
    return document.comma_due
