"""Group-by of rows on integer columns, and sums by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.intervals import sorted_unique

_WIDEST, _MOST = 2**31, 2**62
"""Ranges of one column, and of all columns combined, up to which values are used as numbers without sorting."""

_FEW_VALUES = 16
"""Values that are searched for one by one, which is faster than sorting."""

Numbers: TypeAlias = NDArray[np.signedinteger[Any]]
"""Indices, labels or nodes; what is kept as long as its trace is int32, and arithmetic with it needs care."""


@frozen(eq=False)
class Groups:
    """G groups of N rows.

    `keys` int64[G, columns]: the values that each group shares; `group_ids` int64[N]: the group of each row; `first`
    int64[G]: the first row of each group.
    """

    keys: NDArray[np.int64]
    group_ids: NDArray[np.int64]
    first: NDArray[np.int64]

    def count(self) -> list[int]:
        """Return the number of rows in each group."""
        counts: list[int] = np.bincount(self.group_ids, minlength=len(self.keys)).tolist()
        return counts

    def sum(self, values: NDArray[np.int64] | NDArray[np.bool_]) -> list[int]:
        """Return the exact sum of the values of each group."""
        sums: list[int] = self.totals(values).tolist()
        return sums

    def totals(self, values: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the exact sum of the values of each group: int64[G]."""
        totals = np.zeros(len(self.keys), np.int64)
        np.add.at(totals, self.group_ids, np.asarray(values, np.int64))  # of bools it takes fifty times as long
        return totals

    def by_part(self, part: Numbers, values: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """Return, per group, (number of parts in which it has rows, largest sum of its values in one part).

        `part` [N] ascends; `values` int64[N] are not negative.
        """
        narrow = self.group_ids.astype(np.min_scalar_type(len(self.keys)))
        order = np.argsort(narrow, kind="stable")  # numpy sorts numbers of at most two bytes by radix
        group_ids, part = self.group_ids[order], part[order]
        starts = np.flatnonzero(np.r_[True, (group_ids[1:] != group_ids[:-1]) | (part[1:] != part[:-1])][: len(part)])
        group_of_start, largest = group_ids[starts], np.zeros(len(self.keys), np.int64)
        np.maximum.at(largest, group_of_start, np.add.reduceat(values[order], starts) if len(starts) else values)
        num_parts: list[int] = np.bincount(group_of_start, minlength=len(self.keys)).tolist()
        sums: list[int] = largest.tolist()
        return num_parts, sums


def group(columns: Sequence[Numbers]) -> Groups:
    """Return the groups of rows that agree in all columns, in ascending order of the columns."""
    number, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        digits, least, width = _digits(np.asarray(column, np.int64))
        if size > _MOST // width:
            number, size = _ranks(number)
        number *= width
        number += digits
        number -= least
        size *= width
    first, group_ids = _by_table(number, size) if size <= 4 * len(number) else _by_sorting(number)
    return Groups(np.column_stack([np.asarray(column[first], np.int64) for column in columns]), group_ids, first)


def ordinals(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return, of each row, how many rows before it agree with it in all columns: int64[N]."""
    group_ids = group(columns).group_ids
    order = np.argsort(group_ids, kind="stable")
    starts = np.flatnonzero(np.diff(group_ids[order], prepend=-1))
    ordinal = np.empty(len(order), np.int64)
    ordinal[order] = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return ordinal


def by_value(values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (value, the indices that have it, ascending) for each value, ascending.

    One sort where there are many values: a search for each, as of thousands of threads, takes their number times N.
    """
    distinct = sorted_unique(values)
    if len(distinct) <= _FEW_VALUES:
        yield from ((value, np.flatnonzero(values == value)) for value in distinct.tolist())
        return
    order = np.argsort(values, kind="stable")
    bounds = np.append(np.searchsorted(values[order], distinct), len(order)).tolist()
    for value, start, end in zip(distinct.tolist(), bounds[:-1], bounds[1:], strict=True):
        yield value, order[start:end]


def equal_pairs(a: NDArray[np.int64], b: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (index into `a`, index into `b`), int64[P] each, of every pair of equal values."""
    order = np.argsort(b, kind="stable")
    first, last = (np.searchsorted(b[order], a, side) for side in ("left", "right"))
    num = last - first
    of_a = np.repeat(np.arange(len(a)), num)
    return of_a, order[np.arange(len(of_a)) - np.repeat(np.cumsum(num) - num - first, num)]


def absent(chosen: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the numbers below `size` that are not among some, ascending; many times as fast as np.setdiff1d."""
    is_absent = np.ones(size, np.bool_)
    is_absent[chosen] = False
    return np.flatnonzero(is_absent)


def inverse(order: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return int64[size]: the position in `order` of each number below `size`, -1 without one. It may hold -1, too."""
    position = np.full(size, -1)
    present = np.flatnonzero(order >= 0)
    position[order[present]] = present
    return position


def _digits(column: NDArray[np.int64]) -> tuple[NDArray[np.int64], int, int]:
    """Return (numbers in the order of the values, their minimum, how many there can be)."""
    least, most = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    if most - least < _WIDEST:
        return column, least, most - least + 1
    ranks, num = _ranks(column)
    return ranks, 0, num


def _ranks(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    distinct, ranks = np.unique(values, return_inverse=True)
    return ranks, len(distinct)


def _by_table(number: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (first row of each distinct number, group of each row), by a table of all numbers below `size`."""
    first = np.full(size, -1)
    first[number[::-1]] = np.arange(len(number))[::-1]  # the last assignment wins, which is the first row's
    present = np.flatnonzero(first >= 0)
    rank = np.zeros(size, np.int64)
    rank[present] = np.arange(len(present))
    return first[present], rank[number]


def _by_sorting(number: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the same as `_by_table`, by sorting; np.unique takes twice as long."""
    order = np.argsort(number, kind="stable")
    in_order = number[order]
    starts = np.flatnonzero(np.r_[True, in_order[1:] != in_order[:-1]][: len(number)])
    group_ids = np.empty(len(number), np.int64)
    group_ids[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(number)))
    return order[starts], group_ids
