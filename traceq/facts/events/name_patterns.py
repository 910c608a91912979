"""Names of rows: each distinct name is examined once, and distinct names come from a lookup table, not a sort."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.model import Events

__all__ = ["matching", "unique_inverse", "unique_names"]


def matching(events: Events, rows: NDArray[np.int64], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return whether the pattern occurs in each row's name: bool[len(rows)]."""
    names, hits = events.name[rows], np.zeros(len(events.strings), np.bool_)
    hits[names] = True
    for name in np.flatnonzero(hits).tolist():
        hits[name] = pattern.search(events.strings[name]) is not None
    return np.asarray(hits[names])


def unique_names(events: Events, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (ascending string ids of the distinct names of some rows, index of each row's name among them)."""
    return unique_inverse(events.name[rows], len(events.strings))


def unique_inverse(
    numbers: NDArray[np.int64] | NDArray[np.int32], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (ascending distinct values, index of each number among them) for numbers below `size`.

    Like np.unique(return_inverse=True) in linear time; -1 counts as `size` - 1.
    """
    is_used = np.zeros(size, np.bool_)
    is_used[numbers] = True
    return np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[numbers]
