"""Lookup of rows by the ids that relate them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["first_index"]


def first_index(ids: NDArray[np.int64], wanted_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the first occurrence of each wanted id in `ids`: int64[K].

    -1 if the id is absent, or not positive (Kineto writes 0 or -1 for "no id").
    """
    if len(ids) == 0:
        return np.full(len(wanted_ids), -1)
    order = np.argsort(ids, kind="stable")
    index = order[np.minimum(np.searchsorted(ids[order], wanted_ids), len(ids) - 1)]
    return np.where((wanted_ids > 0) & (ids[index] == wanted_ids), index, -1)
