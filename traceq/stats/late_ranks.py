"""Whether a rank is late step after step, or only in a few: from many unprofiled steps of all ranks.

A late rank has to be found twice: by a rank test over blocks of steps, which noise of single steps cannot pass, and in
every eighth of the recording, which a machine that is busy for a while cannot. `benchmarks/stats.py` prints how often
both say something false.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.stats.means import BLOCK, interval_of_mean

__all__ = ["late_ranks", "lateness_of_ranks", "saved_at_pace_of_others", "steps_needed"]

_CHANCE = 0.05
"""Chance that symmetric ranks have a late one, by the rank test alone."""

_LEAST = 0.01
"""Part of a step from which lateness matters."""

_PARTS = 8
"""Parts of a recording in each of which a late rank is late; other processes on its cores seldom make it so in all."""

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
        if all(np.median(part) > _LEAST for part in np.array_split(values, _PARTS))
        and _signed_rank_chance(_block_medians(values) - _LEAST) <= _CHANCE / num_ranks
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
