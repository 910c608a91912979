"""Interval algebra on int64[N, 2] nanoseconds: half-open, sorted, disjoint."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_LONG_RUN = 6
"""Binary logarithm of the mean length from which runs are merged rather than sorted."""

TOO_DEEP = -2
"""Answer of `last_open` where it is further up."""

Number = TypeVar("Number", bound=np.signedinteger[Any])

Spans = NDArray[np.int64]
"""int64[N, 2]: half-open [start, end) in ns, sorted by start, disjoint and not touching."""


def empty() -> Spans:
    """Return no intervals: int64[0, 2]."""
    return np.empty((0, 2), np.int64)


def spans(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Spans:
    """Return the union of the intervals [starts[i], ends[i]), in any order; empty and reversed ones are dropped."""
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if len(starts) == 0:
        return empty()
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    is_first = np.r_[True, starts[1:] > reach[:-1]]
    is_last = np.r_[is_first[1:], True]
    return np.column_stack([starts[is_first], reach[is_last]])


def sorted_unique(*numbers: NDArray[Number]) -> NDArray[Number]:
    """Return the distinct numbers of all arrays, ascending; several times as fast as np.unique, which hashes first."""
    distinct: NDArray[Number] = _without_repeats(ascending(_without_repeats(np.concatenate(numbers))))
    return distinct


def ascending(numbers: NDArray[Number]) -> NDArray[Number]:
    """Return the numbers ascending; long runs that ascend already are merged, in a fifth of the time of a sort or less.

    Ends of kernels, and times of launches, are nearly in order: then that is a fiftieth.
    """
    num_runs = 1 + np.count_nonzero(numbers[1:] < numbers[:-1])
    return np.sort(numbers, kind="stable" if num_runs <= len(numbers) >> _LONG_RUN else None)


def _without_repeats(numbers: NDArray[Number]) -> NDArray[Number]:
    """Return the numbers without those that equal their predecessor."""
    differs = numbers[1:] != numbers[:-1]
    return numbers if differs.all() else numbers.compress(np.r_[True, differs])


def measure(a: Spans) -> int:
    """Return the total length in ns."""
    return int((a[:, 1] - a[:, 0]).sum())


def union(a: Spans, b: Spans) -> Spans:
    """Return the instants in a or b."""
    both = np.concatenate([a, b])
    return spans(both[:, 0], both[:, 1])


def intersect(a: Spans, b: Spans) -> Spans:
    """Return the instants in a and b."""
    if len(a) == 0 or len(b) == 0:
        return empty()
    edges = sorted_unique(a.ravel(), b.ravel())
    inside = contains(a, edges[:-1]) & contains(b, edges[:-1])
    return spans(edges[:-1][inside], edges[1:][inside])


def complement(a: Spans, start: int, end: int) -> Spans:
    """Return the instants of [start, end) outside a."""
    starts = np.r_[np.int64(start), a[:, 1]]
    ends = np.r_[a[:, 0], np.int64(end)]
    return spans(np.clip(starts, start, end), np.clip(ends, start, end))


def subtract(a: Spans, b: Spans) -> Spans:
    """Return the instants in a and not in b."""
    if len(a) == 0 or len(b) == 0:
        return a
    return intersect(a, complement(b, int(a[0, 0]), int(a[-1, 1])))


def contains(a: Spans, instants: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[K]: whether each instant is in a."""
    return span_index(a, instants) >= 0 if len(a) else np.zeros(len(instants), np.bool_)


def measure_within(a: Spans, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[M] ns: the length of a within each [starts[i], ends[i]), which may overlap each other."""
    if len(a) == 0:
        return np.zeros(len(starts), np.int64)
    before = np.r_[np.int64(0), np.cumsum(a[:, 1] - a[:, 0])]

    def up_to(t: NDArray[np.int64]) -> NDArray[np.int64]:
        index = np.searchsorted(a[:, 0], t, "right") - 1
        inside = np.minimum(t, a[:, 1][index]) - a[:, 0][index]
        return np.where(index >= 0, before[index] + inside, 0)

    return up_to(np.maximum(starts, ends)) - up_to(starts)


def measure_common(a: Spans, b: Spans) -> int:
    """Return the total length in ns of the intersection of a and b."""
    few, many = sorted((a, b), key=len)
    return int(measure_within(many, few[:, 0], few[:, 1]).sum())


def earliest_owner(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[Spans, NDArray[np.int64]]:
    """Return disjoint parts int64[M, 2] and int64[M], the index of the interval of each that started first.

    The intervals are sorted by start; of those that start together the first one owns the instant.
    """
    reach = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, ends])[:-1] if len(ends) else ends
    clipped = np.maximum(starts, reach)
    owners = np.flatnonzero(ends > clipped)
    return np.column_stack([clipped[owners], ends[owners]]), owners


def span_index(parts: Spans, instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[K]: index of the disjoint, sorted part that contains each instant, -1 outside all."""
    if len(parts) == 0:
        return np.full(len(instants), -1)
    index = count_before(parts[:, 0], instants)
    index -= 1
    index[np.flatnonzero(instants >= parts[:, 1][index])] = -1  # several times as fast as a mask, or parts[index, 1]
    return index


def count_before(starts: NDArray[np.int64], instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[K]: the number of sorted starts at or before each instant."""
    if len(instants) <= len(starts) or (instants[1:] < instants[:-1]).any():
        return np.searchsorted(starts, instants, "right")
    num = np.zeros(len(instants) + 1, np.int64)
    np.add.at(num, np.searchsorted(instants, starts, "left"), 1)  # fewer searches, as the instants are sorted, too
    return np.cumsum(num[:-1], out=num[:-1])


def last_open(
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    parent: NDArray[np.int64],
    instants: NDArray[np.int64],
    levels: int,
) -> NDArray[np.int64]:
    """Return int64[K]: of nested intervals, sorted by `start`, the innermost one open at each instant; -1 for none.

    `parent`: the interval that encloses each, -1 at the top. TOO_DEEP where it is more than `levels` above the last one
    that began.
    """
    index = count_before(start, instants)
    index -= 1
    pending = np.flatnonzero(index >= 0)
    pending = pending.compress(end[index[pending]] <= instants[pending])
    for _ in range(levels):
        if len(pending) == 0:
            return index
        index[pending] = enclosing = parent[index[pending]]
        pending = pending.compress(enclosing >= 0)
        pending = pending.compress(end[index[pending]] <= instants[pending])
    index[pending] = np.where(parent[index[pending]] < 0, -1, TOO_DEEP)
    return index


def cut(whole: Spans, cuts: NDArray[np.int64]) -> tuple[Spans, NDArray[np.int64]]:
    """Return int64[P, 2], the intervals cut at ascending, distinct instants, and int64[P], each part's interval."""
    span = span_index(whole, cuts)
    inside = np.flatnonzero(span >= 0)
    inside = inside.compress(cuts[inside] > whole[:, 0][span[inside]])
    num = 1 + np.bincount(span[inside], minlength=len(whole))
    parts, last = np.empty((len(whole) + len(inside), 2), np.int64), np.cumsum(num) - 1
    first, after_cut = last - num + 1, np.arange(len(inside)) + span[inside] + 1
    parts[first, 0], parts[after_cut, 0] = whole[:, 0], cuts[inside]
    parts[:-1, 1], parts[last, 1] = parts[1:, 0], whole[:, 1]
    span_of_part = np.zeros(len(parts), np.int64)
    span_of_part[first[1:]] = 1
    return parts, np.cumsum(span_of_part, out=span_of_part)


def advance(a: Spans, since: NDArray[np.int64], ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[K]: the instant at which `ns` of a have elapsed since each instant; a must be long enough."""
    if len(a) == 0:
        return since.copy()
    elapsed = np.cumsum(a[:, 1] - a[:, 0])
    target = measure_within(a, np.full(len(since), a[0, 0]), since) + ns
    index = np.minimum(np.searchsorted(elapsed, target, "left"), len(a) - 1)
    return np.where(ns > 0, a[index, 1] - (elapsed[index] - target), since)
