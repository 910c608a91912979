"""Which batch to try next, on the way to the largest that fits: doubled until one does not, then halved in between."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["next_batch"]

_PRECISION = 8
"""The largest batch is known to within an eighth of it."""


def next_batch(fits: Mapping[int, bool], first: int, most: int) -> int | None:
    """The next size to try after these, None when the largest that fits is known or `most` fits."""
    if not fits:
        return first
    smallest_refused = min((size for size, does in fits.items() if not does), default=0)
    largest = max((size for size, does in fits.items() if does), default=0)
    if not smallest_refused:
        return min(2 * largest, most) if largest < most else None
    if not largest:
        return smallest_refused // 2 or None
    between = (largest + smallest_refused) // 2
    return between if smallest_refused - largest > max(1, largest // _PRECISION) else None
