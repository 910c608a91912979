"""Sums by group: the one way in which rows of events become rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Groups", "group"]

_WIDEST, _MOST = 2**31, 2**62
"""Ranges of one column, and of rows, that are numbered without sorting."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """G groups of N rows: `keys` int64[G, columns], the values each group shares; `of_row` int64[N]; `first` int64[G],
    the first row of each group.
    """

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

    def by_part(self, part: NDArray[np.int64], values: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """(in how many parts each group has rows, the largest sum of its `values` int64[N], not negative, in one of
        them); `part` int64[N] ascends.
        """
        narrow = self.of_row.astype(np.min_scalar_type(len(self.keys)))
        order = np.argsort(narrow, kind="stable")  # numbers of two bytes by radix
        of_row, part = self.of_row[order], part[order]
        opens = np.flatnonzero(np.r_[True, (of_row[1:] != of_row[:-1]) | (part[1:] != part[:-1])][: len(part)])
        of, largest = of_row[opens], np.zeros(len(self.keys), np.int64)
        np.maximum.at(largest, of, np.add.reduceat(values[order], opens) if len(opens) else values)
        num: list[int] = np.bincount(of, minlength=len(self.keys)).tolist()
        most: list[int] = largest.tolist()
        return num, most


def group(columns: Sequence[NDArray[np.int64] | NDArray[np.int32] | NDArray[np.int8]]) -> Groups:
    """Rows that agree in all columns form a group; groups come in ascending order of the columns."""
    number, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        digits, least, width = _digits(np.asarray(column, np.int64))
        if size > _MOST // width:
            number, size = _ranks(number)
        number *= width
        number += digits
        number -= least
        size *= width
    first, of_row = _in_table(number, size) if size <= 4 * len(number) else _sorted(number)
    return Groups(np.column_stack([np.asarray(column[first], np.int64) for column in columns]), of_row, first)


def _digits(column: NDArray[np.int64]) -> tuple[NDArray[np.int64], int, int]:
    """(numbers in the order of the values; the least of them; how many there can be)."""
    least, most = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    if most - least < _WIDEST:
        return column, least, most - least + 1
    ranks, num = _ranks(column)
    return ranks, 0, num


def _ranks(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    distinct, ranks = np.unique(values, return_inverse=True)
    return ranks, len(distinct)


def _in_table(number: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(first row of each distinct number, which of those each row has), by a table of all numbers below `size`."""
    first = np.full(size, -1)
    first[number[::-1]] = np.arange(len(number))[::-1]  # of several rows the last one written stays
    present = np.flatnonzero(first >= 0)
    rank = np.zeros(size, np.int64)
    rank[present] = np.arange(len(present))
    return first[present], rank[number]


def _sorted(number: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same by sorting."""
    _, first, of_row = np.unique(number, return_index=True, return_inverse=True)
    return first, of_row
