"""Contraction of a graph of moments to those that matter: the same longest paths between them, over few edges."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.causes.longest_path import longest_paths, topological_order

__all__ = ["contract"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_LEAST_GAIN = 0.02
"""Part of the edges that a round has to remove, or it was the last one."""


def contract(source: Ints, target: Ints, weight: Ints, kept: Mask) -> tuple[Ints, Ints, Ints]:
    """Return (source, target, weight) of fewer edges: all longest paths between `kept` moments are as long as before.

    `source`, `target` int64[E], without circles; `weight` int64[E, P]: of P cases, each of which has its own longest
    paths; `kept` bool[N]. A moment with a single edge into it, or out of it, is replaced by its neighbour, and of edges
    between the same moments the longest stays, until that removes little more; nothing leads to a moment without an
    edge out of it that is not kept. Moments without an edge into them, which paths begin with, stay.
    """
    order = _forwards(source, target, len(kept))
    if order is not None:
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        source, target, weight = contract(number[source], number[target], weight, kept[order])
        return order[source], order[target], weight
    kept, num = kept | (np.bincount(target, minlength=len(kept)) == 0), 2 * len(source)
    last = len(kept) - 1
    while len(source) < (1 - _LEAST_GAIN) * num:
        num = len(source)
        leads = kept | (np.bincount(source, minlength=len(kept)) > 0)  # to anything
        source, target, weight = (column.compress(leads[target], axis=0) for column in (source, target, weight))
        source, target, weight = _without_single(source, target, weight, kept)
        target, source, weight = _without_single(last - target, last - source, weight, kept[::-1])
        source, target = last - source, last - target
    return source, target, weight


def _forwards(source: Ints, target: Ints, num: int) -> Ints | None:
    """Return the moments so that every edge runs forwards; None if all do."""
    return None if (source < target).all() else topological_order(source, target, num).astype(np.int64)


def _without_single(source: Ints, target: Ints, weight: Ints, kept: Mask) -> tuple[Ints, Ints, Ints]:
    """Return the edges without the moments, not kept, that are the target of one edge: its source takes their place.

    Those edges alone are chains, along which what they add up to is the longest path: of the distances between the
    numbers of their moments, which tells where a chain begins, as of the weights.
    """
    is_single = (np.bincount(target, minlength=len(kept)) == 1) & ~kept
    replaced = is_single[target]
    into = np.empty(len(kept), np.int64)
    into[target[replaced]] = np.flatnonzero(replaced)
    into = into[is_single]
    before = source[into]
    first, source_number = np.r_[0, np.cumsum(is_single)].astype(np.int32), before.astype(np.int32)
    back, *passed = (
        longest_paths(first, source_number, column)[0]
        for column in (target[into] - before, *np.ascontiguousarray(weight[into].T))
    )
    left = np.flatnonzero(~replaced)
    source, target, weight = source[left], target[left], weight[left]
    for case, ns in enumerate(passed):
        weight[:, case] += ns[source]
    return _longest(source - back[source], target, weight, len(kept))


def _longest(source: Ints, target: Ints, weight: Ints, num: int) -> tuple[Ints, Ints, Ints]:
    """Return one edge between two moments, the longest of each case."""
    order = np.argsort(source * num + target, kind="stable")
    source, target, weight = source[order], target[order], weight[order]
    first = np.flatnonzero(np.r_[True, (source[1:] != source[:-1]) | (target[1:] != target[:-1])][: len(source)])
    return source[first], target[first], np.maximum.reduceat(weight, first) if len(first) else weight
