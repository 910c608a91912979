"""Names of rows: each is looked at once, however many rows carry it, and found by a table instead of by sorting."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.model import Events

__all__ = ["matching", "names_of", "numbers_used"]


def matching(events: Events, rows: NDArray[np.int64], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """bool[len(rows)]: does the row's name match somewhere?"""
    names, hits = events.name[rows], np.zeros(len(events.strings), np.bool_)
    hits[names] = True
    for name in np.flatnonzero(hits).tolist():
        hits[name] = pattern.search(events.strings[name]) is not None
    return np.asarray(hits[names])


def names_of(events: Events, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(string ids of the distinct names of some rows, ascending; which of them each row carries)."""
    return numbers_used(events.name[rows], len(events.strings))


def numbers_used(
    numbers: NDArray[np.int64] | NDArray[np.int32], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(the distinct ones of some numbers below `size`, ascending; which of them each is); -1 counts as the last."""
    is_used = np.zeros(size, np.bool_)
    is_used[numbers] = True
    return np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[numbers]
