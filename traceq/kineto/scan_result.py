"""What either reader makes of a source."""

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
    """Raise UnreadableInput where so many events do not fit into memory: gzip can hold a thousand times its size."""
    most = _memory_bytes() // _ROW_BYTES
    if num_rows > most:
        raise UnreadableInput(str(path), f"more than {most:,} events, for which this machine has no memory")


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


@dataclass(frozen=True, slots=True)
class Damage:
    """What was lost or mended, as byte positions in the plain text.

    `commas_at`: what follows a comma that is missing or one too many. `num_dropped` counts complete events without a
    usable time.
    """

    truncated_at: int | None = None
    skipped_at: tuple[int, ...] = ()
    mended_at: tuple[int, ...] = ()
    commas_at: tuple[int, ...] = ()
    broken_metadata_at: int | None = None
    num_dropped: int = 0

    @classmethod
    def of(cls, document: Document, source: ByteSource, num_dropped: int) -> Damage:
        """What a document found when it was read to its end."""
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
    """All that one file says: events as columns, its named threads, the raw JSON of its metadata, its damage."""

    events: Events
    threads: tuple[Thread, ...]
    metadata: Mapping[str, msgspec.Raw]
    damage: Damage
