"""Ranks that are alike: those whose times lie together in every phase."""

from __future__ import annotations

from math import ceil
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

__all__ = ["cluster_ranks", "gap_clusters"]

_FAR, _FEW = 2.0, 18
"""Gaps that noise leaves between neighbours: of a thousand ranks under two standard deviations, of a dozen, whose
spread is known badly, under seven. Of 24 ranks or more, whose phases scatter by 1 to 5 %, one job in 100 is parted."""
_NEAR = 0.25
_MANY = 64

Times = NDArray[np.float64]


def cluster_ranks(times: Times, least: float) -> NDArray[np.int64]:
    """int64[R]: number of each rank's cluster, the largest first. `times` float64[R, P] of R ranks in P phases; a
    difference below `least` never parts two ranks.
    """
    labels = np.column_stack([gap_clusters(column, least) for column in times.T])
    _, first, of_rank, num = np.unique(labels, axis=0, return_index=True, return_inverse=True, return_counts=True)
    number = np.empty(len(num), np.int64)
    number[np.lexsort((first, -num))] = np.arange(len(num))
    return number[of_rank.reshape(-1)]


def gap_clusters(values: Times, least: float) -> NDArray[np.int64]:
    """int64[R]: number of the band that each value lies in, ascending.

    Two neighbours lie in different bands if they are further apart than `least`, than noise would leave them, and than
    a quarter of their distance from where most values lie: what stands far out need not agree as well.
    """
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    middle, gap = _core(ascending)
    out = np.minimum(abs(ascending[1:] - middle), abs(ascending[:-1] - middle))
    apart = np.diff(ascending) > np.maximum(max(least, gap), _NEAR * out)
    band = np.empty(len(values), np.int64)
    band[order] = np.r_[0, np.cumsum(apart)]
    return band


def _core(ascending: Times) -> tuple[float, float]:
    """(middle of most values, gap that noise leaves between neighbours).

    The spread is that of a normal distribution whose core is the narrowest half of the values, or quarter where they
    are many: ranks that stand out do not change it, and of two or four kinds it is that of one.
    """
    num = len(ascending)
    held = ceil(num / (4 if num >= _MANY else 2))
    widths = ascending[held - 1 :] - ascending[: num - held + 1]
    at = int(widths.argmin())
    spread = float(widths[at]) / 2 / NormalDist().inv_cdf((1 + held / (num + 1)) / 2)
    return float(ascending[at : at + held].mean()), _FAR * (1 + _FEW / held) * spread
