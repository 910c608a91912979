"""Clusters of similar ranks: those whose times are close in every phase."""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

__all__ = ["cluster_ranks", "gap_clusters"]

_FAR, _FEW = 2.0, 18
"""Factors of the gap that noise leaves between neighbours: below 2 standard deviations for a thousand ranks, below 7
for a dozen, whose spread is poorly estimated. Of jobs with 24 or more similar ranks and 1 to 5 % noise per phase, 1 in
100 is split."""
_NEAR = 0.25
_MANY = 64

Times = NDArray[np.float64]


def cluster_ranks(times: Times, least: float) -> NDArray[np.int64]:
    """int64[R]: cluster of each rank, numbered from the largest.

    `times` float64[R, P] are of R ranks in P phases; a difference below `least` never separates two ranks.
    """
    labels = np.column_stack([gap_clusters(column, least) for column in times.T])
    _, first, label_of, num = np.unique(labels, axis=0, return_index=True, return_inverse=True, return_counts=True)
    number = np.empty(len(num), np.int64)
    number[np.lexsort((first, -num))] = np.arange(len(num))
    return number[label_of.reshape(-1)]


def gap_clusters(values: Times, least: float) -> NDArray[np.int64]:
    """int64[R]: cluster of each value, numbered in ascending order of the values.

    Two neighbours are in different clusters if their gap exceeds `least`, the gap that noise leaves, and a quarter of
    their distance from the centre of most values: outliers need not agree as closely.
    """
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    centre, gap = _core(ascending)
    distance = np.minimum(abs(ascending[1:] - centre), abs(ascending[:-1] - centre))
    is_split = np.diff(ascending) > np.maximum(max(least, gap), _NEAR * distance)
    cluster = np.empty(len(values), np.int64)
    cluster[order] = np.r_[0, np.cumsum(is_split)]
    return cluster


def _core(ascending: Times) -> tuple[float, float]:
    """Return (centre of most values, gap that noise leaves between neighbours).

    The spread is that of a normal distribution whose core is the narrowest half of the values, or the narrowest quarter
    of many values: outliers do not change it, and with two or four kinds of ranks it is that of one kind.
    """
    from statistics import NormalDist  # for jobs of many ranks alone

    num = len(ascending)
    size = ceil(num / (4 if num >= _MANY else 2))
    widths = ascending[size - 1 :] - ascending[: num - size + 1]
    start = int(widths.argmin())
    spread = float(widths[start]) / 2 / NormalDist().inv_cdf((1 + size / (num + 1)) / 2)
    return float(ascending[start : start + size].mean()), _FAR * (1 + _FEW / size) * spread
