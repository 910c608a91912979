"""Contraction of a graph of moments to those that matter: the same longest paths between them, over few edges."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
    kept, num = kept | (np.bincount(target, minlength=len(kept)) == 0), 2 * len(source)
    while len(source) < (1 - _LEAST_GAIN) * num:
        num = len(source)
        leads = kept | (np.bincount(source, minlength=len(kept)) > 0)  # to anything
        source, target, weight = (column[leads[target]] for column in (source, target, weight))
        source, target, weight = _without_single(source, target, weight, kept)
        target, source, weight = _without_single(target, source, weight, kept)
    return source, target, weight


def _without_single(source: Ints, target: Ints, weight: Ints, kept: Mask) -> tuple[Ints, Ints, Ints]:
    """Return the edges without the moments, not kept, that are the target of one edge: its source takes their place."""
    is_single = (np.bincount(target, minlength=len(kept)) == 1) & ~kept
    root, before = np.arange(len(kept)), np.zeros((len(kept), weight.shape[1]), np.int64)
    replaced = is_single[target]
    root[target[replaced]], before[target[replaced]] = source[replaced], weight[replaced]
    pending = np.flatnonzero(is_single)
    while len(pending):  # by pointer jumping
        nearer = root[pending]
        further = root[nearer]
        moves = further != nearer
        pending, nearer = pending.compress(moves), nearer.compress(moves)
        before[pending] += before[nearer]
        root[pending] = further.compress(moves)
    left = ~replaced
    return _longest(root[source[left]], target[left], weight[left] + before[source[left]], len(kept))


def _longest(source: Ints, target: Ints, weight: Ints, num: int) -> tuple[Ints, Ints, Ints]:
    """Return one edge between two moments, the longest of each case."""
    order = np.argsort(source * num + target, kind="stable")
    source, target, weight = source[order], target[order], weight[order]
    first = np.flatnonzero(np.r_[True, (source[1:] != source[:-1]) | (target[1:] != target[:-1])][: len(source)])
    return source[first], target[first], np.maximum.reduceat(weight, first) if len(first) else weight
