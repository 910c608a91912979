"""Sums by group: the one way in which rows of events become rows of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Groups", "group"]

_FITS = 2**62
"""Below it a row of a table is one number, which sorts many times as fast."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """G groups of N rows: `keys` int64[G, columns], the values each group shares; `of_row` int64[N]; `first` int64[G],
    the first row of each group."""

    keys: NDArray[np.int64]
    of_row: NDArray[np.int64]
    first: NDArray[np.int64]

    def count(self) -> list[int]:
        """Rows in each group."""
        counts: list[int] = np.bincount(self.of_row, minlength=len(self.keys)).tolist()
        return counts

    def sum(self, values: NDArray[np.int64] | NDArray[np.bool_]) -> list[int]:
        """Exact int64 sum of the values of each group."""
        total = np.zeros(len(self.keys), np.int64)
        np.add.at(total, self.of_row, values)
        totals: list[int] = total.tolist()
        return totals


def group(columns: Sequence[NDArray[np.int64] | NDArray[np.int32] | NDArray[np.int8]]) -> Groups:
    """Rows that agree in all columns form a group; groups come in ascending order of the columns."""
    table = np.column_stack([np.asarray(column, np.int64) for column in columns])
    if len(table) == 0:
        return Groups(table, np.empty(0, np.int64), np.empty(0, np.int64))
    least = table.min(axis=0)
    sizes = table.max(axis=0) - least + 1
    if math.prod(sizes.tolist()) < _FITS:
        code = np.ravel_multi_index(tuple((table - least).T), tuple(sizes.tolist()))
        _, first, of_row = np.unique(code, return_index=True, return_inverse=True)
    else:
        _, first, of_row = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return Groups(table[first], of_row.reshape(-1), first)
