"""A source of bytes to the columns of its events: the one function that both readers stand behind.

The reader in Python (msgspec, numpy) is the reference: it alone decides what damaged text means. The native one reads
what is clean, eight times as fast, and calls the reference for the rest; where it was not built that one reads all.
"""

from __future__ import annotations

import os

from traceq.errors import UsageFault
from traceq.kineto import native
from traceq.kineto.columns import ColumnBuilder
from traceq.kineto.document import Document
from traceq.kineto.scan_result import Damage, Scan, check_size
from traceq.kineto.source import ByteSource
from traceq.model import Thread

__all__ = ["reader", "scan", "threads"]


def reader() -> str:
    """`native` or `python`: the one that TRACEQ_READER names, else the native one where it was built."""
    wanted = os.environ.get("TRACEQ_READER") or ("python" if native.MISSING else "native")
    if wanted not in ("native", "python"):
        raise UsageFault(f"TRACEQ_READER={wanted}: no such reader; there are native and python")
    if wanted == "native" and native.MISSING:
        raise UsageFault(f"TRACEQ_READER=native: it was not built ({native.MISSING})")
    return wanted


def threads() -> int:
    """How many threads of the native reader scan one trace: TRACEQ_THREADS, 1 or 2, else one."""
    wanted = os.environ.get("TRACEQ_THREADS") or "1"
    if wanted not in ("1", "2"):
        raise UsageFault(f"TRACEQ_THREADS={wanted}: a trace is scanned by 1 thread or by 2")
    return int(wanted)


def scan(source: ByteSource) -> Scan:
    """Read a source to its end. Raises UnreadableInput where it is no trace."""
    if reader() == "native":
        return native.scan_natively(source, threads=threads())
    document, columns = Document(source), ColumnBuilder()
    for window in document.windows():
        columns.add(window)
        check_size(source.path, columns.num_rows)
    named = tuple(Thread(pid, tid, name) for (pid, tid), name in columns.threads.items())
    return Scan(columns.build(), named, document.metadata, Damage.of(document, source, columns.dropped))
