"""Longest common subsequence of two long and mostly equal sequences of numbers."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(int64[P], int64[P]): indices into the first and the second sequence, both ascending."""

_MAX_EDITS, _MAX_EDIT_SHARE = 1200, 0.6
"""Insertions and deletions in one gap, and their share of its elements; what differs more is not compared."""

_MULTIPLIER = 0x5851F42D4C957F2D


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
    """Return the pairs that a shortest edit script keeps; none if it is longer than `_MAX_EDITS`.

    All diagonals of one number of edits are extended together, as far as hashes of the elements agree.
    """
    size_a, size_b = len(a), len(b)
    most = min(size_a + size_b, max(64, min(int(_MAX_EDIT_SHARE * (size_a + size_b)), _MAX_EDITS)))
    if size_a + size_b - 2 * _num_common(a, b) > most:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    a, b = np.split(np.unique(np.r_[a, b], return_inverse=True)[1], [size_a])
    hash_a, hash_b, powers = _prefix_hashes(a), _prefix_hashes(b), _powers(max(size_a, size_b) + 1)
    reach = np.zeros(2 * most + 3, np.int64)  # furthest element of `a` by diagonal, which is most + 1 + (a - b)
    history: list[NDArray[np.int64]] = []
    for edits in range(most + 1):
        history.append(reach.copy())
        diagonal = np.arange(-edits, edits + 1, 2)
        center = most + 1 + diagonal
        down = (diagonal == -edits) | ((diagonal != edits) & (reach[center - 1] < reach[center + 1]))
        x = np.where(down, reach[center + 1], reach[center - 1] + 1) if edits else np.zeros(1, np.int64)
        y = x - diagonal
        valid = (x <= size_a) & (y <= size_b) & (y >= 0)
        x = np.where(valid, x, np.minimum(x, size_a))
        steps = np.zeros(len(x), np.int64)
        steps[valid] = _common_lengths(hash_a, hash_b, powers, x[valid], y[valid], size_a, size_b)
        x += steps
        reach[center] = np.where(valid, x, -(2**40))
        done = np.flatnonzero(valid & (x >= size_a) & (x - diagonal >= size_b))
        if len(done):
            return _kept(history, most, size_a, size_b)
    return np.empty(0, np.int64), np.empty(0, np.int64)


def _num_common(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Return how many elements both have, in any order: no common subsequence is longer."""
    values, counts_a = np.unique(a, return_counts=True)
    others, counts_b = np.unique(b, return_counts=True)
    _, in_a, in_b = np.intersect1d(values, others, assume_unique=True, return_indices=True)
    return int(np.minimum(counts_a[in_a], counts_b[in_b]).sum())


def _powers(size: int) -> NDArray[np.uint64]:
    return np.cumprod(np.r_[np.uint64(1), np.full(size, _MULTIPLIER, np.uint64)], dtype=np.uint64)


def _prefix_hashes(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return uint64[N + 1]: sums of value * multiplier ** index, modulo 2 ** 64."""
    powers = _powers(len(values))[: len(values)]
    return np.asarray(np.r_[np.uint64(0), np.cumsum(values.view(np.uint64) * powers, dtype=np.uint64)])


def _common_lengths(
    hash_a: NDArray[np.uint64],
    hash_b: NDArray[np.uint64],
    powers: NDArray[np.uint64],
    x: NDArray[np.int64],
    y: NDArray[np.int64],
    size_a: int,
    size_b: int,
) -> NDArray[np.int64]:
    """Return int64[K]: how many elements from a[x] and b[y] on are equal, by bisection."""
    low, high = np.zeros(len(x), np.int64), np.minimum(size_a - x, size_b - y)
    while (low < high).any():
        middle = (low + high + 1) // 2
        in_a = (hash_a[x + middle] - hash_a[x]) * powers[np.maximum(y - x, 0)]
        in_b = (hash_b[y + middle] - hash_b[y]) * powers[np.maximum(x - y, 0)]
        equal = in_a == in_b
        low, high = np.where(equal, middle, low), np.where(equal, high, middle - 1)
    return low


def _kept(history: list[NDArray[np.int64]], most: int, x: int, y: int) -> Pairs:
    """Return the diagonal runs of the edit script that ends at (x, y)."""
    in_a: list[NDArray[np.int64]] = []
    in_b: list[NDArray[np.int64]] = []
    for edits in range(len(history) - 1, -1, -1):
        reach, diagonal = history[edits], x - y
        if edits:
            center = most + 1 + diagonal
            down = diagonal == -edits or (diagonal != edits and reach[center - 1] < reach[center + 1])
            before = diagonal + 1 if down else diagonal - 1
            x_before = int(reach[most + 1 + before])
            x_start = x_before if down else x_before + 1
        else:
            before, x_before, x_start = 0, 0, 0
        in_a.append(np.arange(x_start, x))
        in_b.append(np.arange(x_start - diagonal, y))
        x, y = x_before, x_before - before
    return np.concatenate(in_a[::-1]), np.concatenate(in_b[::-1])
