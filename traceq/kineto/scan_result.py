"""Result of reading a source, by either reader."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from traceq.errors import UnreadableInput
from traceq.kineto.document import Document
from traceq.kineto.source import ByteSource
from traceq.locations import Place
from traceq.model import Events, Thread

__all__ = ["Damage", "Scan", "check_size"]

_ROW_BYTES = 93


def check_size(path: Place, num_rows: int) -> None:
    """Raise UnreadableInput if this many events do not fit into memory: gzip can expand a thousandfold."""
    limit = _memory_bytes() // _ROW_BYTES
    if num_rows > limit:
        raise UnreadableInput(str(path), f"more than {limit:,} events do not fit into this machine's memory")


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


@dataclass(frozen=True, slots=True)
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
    def of(cls, document: Document, source: ByteSource, num_dropped: int) -> Damage:
        """Return the damage that a document has recorded once it was read to its end."""
        truncated_at = document.truncated_at
        if truncated_at is None and source.fault:
            truncated_at = document.position
        return cls(
            truncated_at,
            skipped_at=tuple(document.skipped_at),
            mended_at=tuple(document.mended_at),
            commas_at=tuple(document.commas_at),
            broken_metadata_at=document.broken_metadata_at,
            num_dropped=num_dropped,
        )


@dataclass(frozen=True, slots=True)
class Scan:
    """Contents of one file: events as columns, its named threads, the raw JSON of its metadata, its damage."""

    events: Events
    threads: tuple[Thread, ...]
    metadata: Mapping[str, msgspec.Raw]
    damage: Damage
