"""Longest common subsequence of two long and mostly equal sequences of numbers."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from traceq.causes._paths import shortest_edits

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(int64[P], int64[P]): indices into the first and the second sequence, both ascending."""

_MAX_EDITS, _MAX_EDIT_SHARE = 10_000, 0.6
"""Insertions and deletions in one gap, and their share of its elements; what differs more is not compared."""


def common_subsequence(a: NDArray[np.int64], b: NDArray[np.int64]) -> Pairs:
    """Return the pairs of equal elements of a common subsequence of two sequences int64[N] and int64[M].

    What both begin and end with is paired first, then elements that occur once on each side (patience diff); the gaps
    between these by the shortest edit script (Myers, An O(ND) Difference Algorithm, 1986).
    """
    pairs: list[Pairs] = []
    pending = [(0, len(a), 0, len(b))]
    while pending:
        a_from, a_to, b_from, b_to = pending.pop()
        head = _num_equal(a[a_from:a_to], b[b_from:b_to])
        pairs.append((np.arange(a_from, a_from + head), np.arange(b_from, b_from + head)))
        a_from, b_from = a_from + head, b_from + head
        tail = _num_equal(a[a_from:a_to][::-1], b[b_from:b_to][::-1])
        pairs.append((np.arange(a_to - tail, a_to), np.arange(b_to - tail, b_to)))
        a_to, b_to = a_to - tail, b_to - tail
        if a_from == a_to or b_from == b_to:
            continue
        in_a, in_b = _unique_in_both(a[a_from:a_to], b[b_from:b_to])
        if len(in_a) == 0:
            in_a, in_b = _edit_script(a[a_from:a_to], b[b_from:b_to])
            pairs.append((a_from + in_a, b_from + in_b))
            continue
        in_a, in_b = a_from + in_a, b_from + in_b
        pairs.append((in_a, in_b))
        starts = zip(np.r_[a_from, in_a + 1].tolist(), np.r_[b_from, in_b + 1].tolist(), strict=True)
        ends = zip(np.r_[in_a, a_to].tolist(), np.r_[in_b, b_to].tolist(), strict=True)
        for (x, y), (x_end, y_end) in zip(starts, ends, strict=True):
            if x < x_end and y < y_end:
                pending.append((x, x_end, y, y_end))
    in_a, in_b = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
    order = np.argsort(in_a, kind="stable")
    return in_a[order], in_b[order]


class Subsequences:
    """Common subsequences, each found once: steps and layers repeat, and so do the gaps in which they differ."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[bytes, bytes], Pairs] = {}

    def of(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> Pairs:
        """Return what `common_subsequence` does."""
        key = a.tobytes(), b.tobytes()
        if key not in self._pairs:
            self._pairs[key] = common_subsequence(a, b)
        return self._pairs[key]


def _num_equal(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Return how many elements both begin with."""
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    return int(np.argmax(differs)) if differs.any() else size


def _unique_in_both(a: NDArray[np.int64], b: NDArray[np.int64]) -> Pairs:
    """Return the longest common subsequence of the elements that occur once on each side."""
    once = np.intersect1d(_once(a), _once(b), assume_unique=True)
    order_a, order_b = np.argsort(a, kind="stable"), np.argsort(b, kind="stable")
    in_a, in_b = order_a[np.searchsorted(a[order_a], once)], order_b[np.searchsorted(b[order_b], once)]
    order = np.argsort(in_a)
    in_a, in_b = in_a[order], in_b[order]
    chosen = _longest_increasing(in_b)
    return in_a[chosen], in_b[chosen]


def _once(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the values that occur once, ascending."""
    distinct, counts = np.unique(values, return_counts=True)
    return np.asarray(distinct[counts == 1])


def _longest_increasing(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of a longest increasing subsequence of distinct values."""
    if (values[1:] > values[:-1]).all():
        return np.arange(len(values))
    tails: list[int] = []
    last: list[int] = []
    before = np.full(len(values), -1)
    for index, value in enumerate(values.tolist()):
        place = bisect_left(tails, value)
        tails[place : place + 1], last[place : place + 1] = [value], [index]
        before[index] = last[place - 1] if place else -1
    chain = [last[-1]]
    while before[chain[-1]] >= 0:
        chain.append(int(before[chain[-1]]))
    return np.array(chain[::-1], np.int64)


def _edit_script(a: NDArray[np.int64], b: NDArray[np.int64]) -> Pairs:
    """Return the pairs that a shortest edit script keeps; none if it is longer than `_MAX_EDITS`."""
    size = len(a) + len(b)
    most = min(size, max(64, min(int(_MAX_EDIT_SHARE * size), _MAX_EDITS)))
    if size - 2 * _num_common(a, b) > most:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    in_a, in_b = np.empty((2, min(len(a), len(b))), np.int64)
    num = shortest_edits(np.ascontiguousarray(a), np.ascontiguousarray(b), most, in_a, in_b)
    first = len(in_a) - max(num, 0)
    return in_a[first:], in_b[first:]


def _num_common(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Return how many elements both have, in any order: no common subsequence is longer."""
    values, counts_a = np.unique(a, return_counts=True)
    others, counts_b = np.unique(b, return_counts=True)
    _, in_a, in_b = np.intersect1d(values, others, assume_unique=True, return_indices=True)
    return int(np.minimum(counts_a[in_a], counts_b[in_b]).sum())
