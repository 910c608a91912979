"""Which ranks are unlike the others: late step after step, by many unprofiled steps, or in another cluster.

A late rank has to be found twice: by a rank test over blocks of steps, which noise of single steps cannot pass, and in
every eighth of the recording, which a machine that is busy for a while cannot. `benchmarks/stats.py` prints how often
both say something false. Ranks of a cluster have times that are close in every phase.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from traceq.claims.limits import NOTABLE
from traceq.stats.limits import FAR, FEW_RANKS, LATE_BY_CHANCE, MANY_RANKS, NEAR, PARTS
from traceq.stats.means import BLOCK, interval_of_mean

Times = NDArray[np.float64]


def steps_needed(num_ranks: int) -> int:
    """Return the number of steps that can tell a late rank from noise."""
    return 400 if num_ranks >= 8 else 200


def lateness_of_ranks(own_ns: Times, wait_ns: Times, step_ns: Times) -> Times:
    """float64[R, S]: how much longer each rank works before the others can go on, in parts of the job's median step.

    `own_ns` float64[R, S]: time in phases without collectives; `wait_ns` likewise in the others, at whose end all ranks
    leave together. Of two ranks the one that is late in the former is early in the latter, by as much.
    """
    num_ranks = len(own_ns)
    work = _work(own_ns, wait_ns)
    others = np.array([np.median(np.delete(work, rank, axis=0), axis=0) for rank in range(num_ranks)])
    late: Times = (work - others) / float(np.median(step_ns.max(axis=0)))
    return late


def saved_at_pace_of_others(own_ns: Times, wait_ns: Times, ranks: Sequence[int]) -> tuple[float, float]:
    """Return (least, most) ns by which the job's step is shorter if these late ranks work as long as the others.

    By the 95 % interval of how much longer each works than the median of the others, none of which is late. A step
    lasts as long as the work of its latest rank, which then may be another one.
    """
    work, late = _work(own_ns, wait_ns), list(ranks)
    others = np.median(np.delete(work, late, axis=0), axis=0)
    ends = np.array([interval_of_mean(work[rank] - others) for rank in late])
    saved = []
    for excess in ends.T:
        balanced = work.copy()
        balanced[late] -= np.maximum(excess, 0)[:, None]
        saved.append(float((work.max(axis=0) - balanced.max(axis=0)).mean()))
    return saved[0], saved[1]


def _work(own_ns: Times, wait_ns: Times) -> Times:
    work: Times = (own_ns - wait_ns) / 2 if len(own_ns) == 2 else own_ns
    return work


def late_ranks(late: Times) -> tuple[int, ...]:
    """Return the indices of ranks that are persistently late; none where the steps are fewer than `steps_needed`."""
    num_ranks, num_steps = late.shape
    if num_steps < steps_needed(num_ranks):
        return ()
    return tuple(
        rank
        for rank, values in enumerate(late)
        if all(np.median(part) > NOTABLE for part in np.array_split(values, PARTS))
        and _signed_rank_chance(_block_medians(values) - NOTABLE) <= LATE_BY_CHANCE / num_ranks
    )


def _block_medians(values: Times) -> Times:
    num = len(values) // BLOCK
    medians: Times = np.median(values[: num * BLOCK].reshape(num, BLOCK), axis=1)
    return medians


def _signed_rank_chance(values: Times) -> float:
    """Return the chance of values so far above 0 if their median is 0 (Wilcoxon; normal approximation, continuous)."""
    num = len(values)
    ranks = np.argsort(np.argsort(abs(values), kind="stable"), kind="stable") + 1
    positive = float(ranks[values > 0].sum())
    mean, variance = num * (num + 1) / 4, num * (num + 1) * (2 * num + 1) / 24
    return math.erfc((positive - mean - 0.5) / math.sqrt(2 * variance)) / 2


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
    is_split = np.diff(ascending) > np.maximum(max(least, gap), NEAR * distance)
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
    size = ceil(num / (4 if num >= MANY_RANKS else 2))
    widths = ascending[size - 1 :] - ascending[: num - size + 1]
    start = int(widths.argmin())
    spread = float(widths[start]) / 2 / NormalDist().inv_cdf((1 + size / (num + 1)) / 2)
    return float(ascending[start : start + size].mean()), FAR * (1 + FEW_RANKS / size) * spread
