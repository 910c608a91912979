"""Search for the largest batch that fits: double until one does not fit, then bisect."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["next_batch"]

_PRECISION = 8
"""The search ends when the largest batch is known to one eighth of its size."""


def next_batch(fits: Mapping[int, bool], first: int, most: int) -> int | None:
    """Return the next size to try, None when the largest that fits is known or `most` fits."""
    if not fits:
        return first
    smallest_failed = min((size for size, fitted in fits.items() if not fitted), default=0)
    largest = max((size for size, fitted in fits.items() if fitted), default=0)
    if not smallest_failed:
        return min(2 * largest, most) if largest < most else None
    if not largest:
        return smallest_failed // 2 or None
    middle = (largest + smallest_failed) // 2
    return middle if smallest_failed - largest > max(1, largest // _PRECISION) else None
