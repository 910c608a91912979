"""What is reserved and not in use: rounding, free parts of segments in use, and segments without any block in use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.model import MemorySnapshot
from traceq.report import column
from traceq.units import Unit

_SMALL_REQUEST = 1 << 20
"""Bytes up to which the allocator serves a request from segments that are not large."""


@frozen
class SegmentRow:
    """A segment at the end, most free memory beside blocks in use first.

    `size_bytes` is `requested_bytes` + `rounding_bytes` + `free_bytes`.
    """

    device: int = column("device", Unit.COUNT)
    address: str = column("segment")
    pool: str = column("pool")
    """`large`, or `small` for requests up to 1 MiB."""
    stream: int = column("stream", Unit.COUNT, is_hidden=True)
    is_expandable: bool = column("expandable", is_hidden=True)
    """A mapped range of an expandable segment."""
    is_used: bool = column("in use", is_hidden=True)
    size_bytes: int = column("reserved", Unit.BYTES)
    requested_bytes: int = column("allocated", Unit.BYTES)
    rounding_bytes: int = column("rounding", Unit.BYTES)
    free_bytes: int = column("free", Unit.BYTES)
    num_free_blocks: int = column("free blocks", Unit.COUNT)
    largest_free_bytes: int = column("largest free block", Unit.BYTES)

    @property
    def inactive_split_bytes(self) -> int:
        """Free bytes beside blocks in use."""
        return self.free_bytes if self.is_used else 0


@frozen
class ReservedRow:
    """A part of what is reserved at the end; the four add up to it."""

    device: int = column("device", Unit.COUNT)
    part: str = column("part")
    """`allocated`, `rounding of blocks`, `free, beside blocks in use` or `free, in segments without any`."""
    num_blocks: int = column("blocks", Unit.COUNT)
    size_bytes: int = column("reserved", Unit.BYTES)
    share_pct: float = column("share", Unit.PERCENT)
    largest_bytes: int | None = column("largest block", Unit.BYTES)


def reserved_rows(snapshot: MemorySnapshot) -> list[ReservedRow]:
    """Return the parts of what is reserved at the end, which add up to it."""
    blocks = snapshot.blocks
    is_used = np.bincount(blocks.segment[blocks.is_active], minlength=len(snapshot.segments.size)) > 0
    is_beside = ~blocks.is_active & is_used[blocks.segment]
    is_unused = ~blocks.is_active & ~is_used[blocks.segment]
    parts = (
        ("allocated", blocks.is_active, blocks.requested),
        ("rounding of blocks", blocks.is_active, blocks.size - blocks.requested),
        ("free, beside blocks in use", is_beside, blocks.size),
        ("free, in segments without any", is_unused, blocks.size),
    )
    total = int(blocks.size.sum()) or 1
    return [
        ReservedRow(
            snapshot.device,
            part,
            int(chosen.sum()),
            int(sizes[chosen].sum()),
            100 * int(sizes[chosen].sum()) / total,
            int(sizes[chosen].max(initial=0)) if part != "rounding of blocks" else None,
        )
        for part, chosen, sizes in parts
    ]


def segment_rows(snapshot: MemorySnapshot) -> list[SegmentRow]:
    """Return the segments of a device, those with most free bytes beside blocks in use first."""
    segments, blocks = snapshot.segments, snapshot.blocks
    num, free = len(segments.size), np.where(blocks.is_active, 0, blocks.size)
    rounding = np.where(blocks.is_active, blocks.size - blocks.requested, 0)
    largest, is_free = np.zeros(num, np.int64), ~blocks.is_active & (blocks.size > 0)
    np.maximum.at(largest, blocks.segment, free)
    columns = (
        segments.stream,
        segments.is_large,
        segments.is_expandable,
        np.bincount(blocks.segment[blocks.is_active], minlength=num) > 0,
        segments.size,
        _sum(blocks.segment, blocks.requested, num),
        _sum(blocks.segment, rounding, num),
        _sum(blocks.segment, free, num),
        np.bincount(blocks.segment[is_free], minlength=num),
        largest,
    )
    rows = [
        SegmentRow(snapshot.device, f"0x{address & (1 << 64) - 1:x}", "large" if is_large else "small", stream, *rest)
        for address, stream, is_large, *rest in zip(
            segments.address.tolist(), *(values.tolist() for values in columns), strict=True
        )
    ]
    return sorted(rows, key=lambda row: (-row.inactive_split_bytes, -row.free_bytes, row.address))


def free_for(snapshot: MemorySnapshot, request: int) -> tuple[int, int]:
    """Return (free bytes, largest free block) of the pool that serves a request of some bytes."""
    blocks = snapshot.blocks
    is_large = snapshot.segments.is_large[blocks.segment] == (request > _SMALL_REQUEST)
    free = blocks.size[~blocks.is_active & is_large]
    return int(free.sum()), int(free.max(initial=0))


def _sum(segment: NDArray[np.int64], values: NDArray[np.int64], num: int) -> NDArray[np.int64]:
    total = np.zeros(num, np.int64)
    np.add.at(total, segment, values)
    return total
