"""A source of bytes to the columns of its events, by either reader.

The Python reader (msgspec, numpy) is the reference: it alone decides what damaged text means. The native reader handles
clean text, eight times as fast, and calls the reference for the rest; if it was not built the reference reads all.
"""

from __future__ import annotations

import os

from traceq.errors import UsageFault
from traceq.kineto import native_reader
from traceq.kineto.columns import ColumnBuilder
from traceq.kineto.damage_report import Damage
from traceq.kineto.decompression import ByteSource
from traceq.kineto.event_windows import Document
from traceq.kineto.limits import check_size
from traceq.kineto.scan_result import Scan

__all__ = ["reader", "scan"]


def reader() -> str:
    """Return `native` or `python`: the one that TRACEQ_READER names, else the native one if it was built."""
    name = os.environ.get("TRACEQ_READER") or ("python" if native_reader.MISSING else "native")
    if name not in ("native", "python"):
        raise UsageFault(f"TRACEQ_READER={name}: no such reader; expected native or python")
    if name == "native" and native_reader.MISSING:
        raise UsageFault(f"TRACEQ_READER=native: the native reader was not built ({native_reader.MISSING})")
    return name


def scan(source: ByteSource) -> Scan:
    """Read a source to its end. Raises UnreadableInput if it is not a trace."""
    if reader() == "native":
        return native_reader.scan_natively(source)
    document, columns = Document(source), ColumnBuilder()
    for window in document.windows():
        columns.add(window)
        check_size(source.path, columns.num_rows)
    damage = Damage.of(document, columns.dropped)
    return Scan(columns.build(), columns.names, document.metadata, damage, columns.num_counters)
