"""Hodges-Lehmann shift of one sample against another: an estimate and its confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.stats.group_sequential import ONE_LOOK, Level

__all__ = ["Interval", "Shift", "rank_of_end", "shift_between", "shift_of_pairs"]

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shift:
    """Location of one sample minus that of another, ns; the intervals are None where there are too few values.

    `delta` is by median, `mean` by mean, with its standard error `mean_error` (infinite for a single value). The
    intervals have their coverage over all looks of `level` together. `z_beyond` is the largest z whose interval is
    beyond ±theta, `z_beyond_0` the largest whose interval excludes 0; 0 where there is no interval.
    """

    delta: int
    mean: int
    mean_error: float
    ci95: Interval | None
    ci90: Interval | None
    level: Level = ONE_LOOK
    z_beyond: float = 0.0
    z_beyond_0: float = 0.0


def shift_of_pairs(
    change: NDArray[np.int64], b_second: NDArray[np.bool_], level: Level = ONE_LOOK, theta_ns: float = 0.0
) -> Shift:
    """Return B - A from int64[P], second half minus first half of each pair.

    An AB pair changes by B - A + c and a BA pair by A - B + c, so half of their difference estimates B - A, and c, the
    cost of running second, cancels. Pairs of one order only include c and get no interval.
    """
    if b_second.all() or not b_second.any():
        return shift_between(np.where(b_second, change, -change), np.zeros(1, np.int64), testable=False)
    return shift_between(change[b_second], change[~b_second], parts=2, level=level, theta_ns=theta_ns)


def shift_between(
    x: NDArray[np.int64],
    y: NDArray[np.int64],
    *,
    parts: int = 1,
    testable: bool = True,
    level: Level = ONE_LOOK,
    theta_ns: float = 0.0,
) -> Shift:
    """Return x minus y: the median of all (x_i - y_j) / parts, and the k-th smallest to the k-th largest of them."""
    ordered = np.sort(np.subtract.outer(x, y), axis=None)

    def interval(z: float) -> Interval | None:
        k = rank_of_end(x.size, y.size, z) if testable else 0
        return (round(int(ordered[k - 1]) / parts), round(int(ordered[-k]) / parts)) if k else None

    return Shift(
        delta=round(float(np.median(ordered)) / parts),
        mean=round((float(x.mean()) - float(y.mean())) / parts),
        mean_error=math.hypot(_error_of_mean(x), _error_of_mean(y)) / parts,
        ci95=interval(level.z95),
        ci90=interval(level.z90),
        level=level,
        z_beyond=_largest_z(ordered / parts, x.size, y.size, theta_ns) if testable else 0.0,
        z_beyond_0=_largest_z(ordered / parts, x.size, y.size, 0.0) if testable else 0.0,
    )


def _largest_z(ordered: NDArray[np.float64], m: int, n: int, bound: float) -> float:
    """Return the largest z at which the interval from these differences is beyond ±bound; 0 if it never is.

    The interval that leaves out k - 1 differences at each end is beyond if no more than those are not.
    """
    rounded = np.rint(ordered)
    outside = min(np.count_nonzero(rounded <= bound), np.count_nonzero(rounded >= -bound))
    return max(0.0, (m * n / 2 - outside - 1) / _standard_error(m, n))


def _error_of_mean(values: NDArray[np.int64]) -> float:
    return float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.inf


def rank_of_end(m: int, n: int, z: float) -> int:
    """Return k: the k-th smallest and k-th largest of m * n differences bound the shift; 0 = too few values.

    Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 4.3: the normal approximation, rounded down.
    """
    return max(0, math.floor(m * n / 2 - z * _standard_error(m, n)))


def _standard_error(m: int, n: int) -> float:
    """Return the standard deviation of the Mann-Whitney statistic without a shift."""
    return math.sqrt(m * n * (m + n + 1) / 12)
