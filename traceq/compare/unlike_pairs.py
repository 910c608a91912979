"""Pairs of the common graph whose work differs: replaced, or done elsewhere, which makes them two one-sided parts.

The host's calls are paired by their place, also where they do something else: one kind of work replaced another only
if there is less of the one and more of the other. Where both sides do as much of it, it moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.compare.cost_centers import FOR
from traceq.compare.labels import Label, is_same_work
from traceq.grouping import group

__all__ = ["unlike_pairs"]


def unlike_pairs(
    labels: Sequence[Label], a: NDArray[np.int64], b: NDArray[np.int64], counts: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which pairs are of work that did not replace each other: bool[E].

    `a`, `b` int64[E] into `labels`, -1 where absent; `counts` bool[E]: parts that count as an event each.
    """
    more = _more(labels, a, b, ~counts) | _more(labels, a, b, counts)  # what no step has is known from elsewhere
    both = np.flatnonzero((a >= 0) & (b >= 0) & (a != b))
    pairs = group([a[both], b[both]])
    unlike = [_is_unlike(labels[x], labels[y], more) for x, y in pairs.keys.tolist()]
    result = np.zeros(len(a), np.bool_)
    result[both] = np.array(unlike, np.bool_)[pairs.group_ids] if len(both) else False
    return result


def _more(
    labels: Sequence[Label], a: NDArray[np.int64], b: NDArray[np.int64], counts: NDArray[np.bool_]
) -> dict[str, int]:
    """Return how much more of each kind of work B has than A among the parts that count."""
    more: dict[str, int] = {}
    for side, sign in ((a, -1), (b, 1)):
        numbers, nums = np.unique(side[counts & (side >= 0)], return_counts=True)
        for number, num in zip(numbers.tolist(), nums.tolist(), strict=True):
            work = _kind_of_work(labels[number])
            more[work] = more.get(work, 0) + sign * num
    return more


def _is_unlike(a: Label, b: Label, more: Mapping[str, int]) -> bool:
    if is_same_work(a, b):
        return a.kind == "collective" and a.phase != b.phase
    if {a.kind, b.kind} == {"sync", "host"}:  # a copy that blocks on one side only
        return False
    return more[_kind_of_work(a)] >= 0 or more[_kind_of_work(b)] <= 0


def _kind_of_work(label: Label) -> str:
    return label.name.partition(FOR)[0] if label.kind == "collective" else label.name
