"""Hodges-Lehmann shift of one sample against another: an estimate and its confidence intervals, valid at all looks.

A recording that stops as soon as it is decided has looked several times, and each look can err: of eleven looks at 95 %
intervals at least one misses in a quarter of all recordings. So every look uses one stricter level (Pocock 1977), and
the intervals are valid at all looks together, whatever stopped the recording (Jennison and Turnbull 1989). The levels
belong to LOOKS: the closer two looks are, the less the second one costs.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen

LOOKS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of pairs after which a recording may stop; even, so that both orders are equally frequent."""

_NUM_POINTS = 64
_LARGEST_Z = 12.0


@frozen
class Level:
    """Normal quantiles of the 95 % and the 90 % interval at each of `num_looks` looks."""

    num_looks: int
    z95: float
    z90: float


@cache
def level_of(num_looks: int) -> Level:
    """Return the level for 1 to 11 looks, their number fixed before the first one."""
    assert 1 <= num_looks <= len(LOOKS)
    return Level(num_looks, _critical_z(0.05, num_looks), _critical_z(0.10, num_looks))


def chance_to_exceed(z: float, num_looks: int) -> float:
    """Return the chance that pure noise is `z` standard errors from 0 at any of the first `num_looks` LOOKS.

    By the recursive integration of Armitage, McPherson and Rowe (1969): the density of the sum of all pairs, inside the
    bounds at every look so far, is integrated from look to look at the points of Gauss and Legendre.
    """
    if num_looks == 1 or not 0 < z < _LARGEST_Z:
        return math.erfc(max(z, 0.0) / math.sqrt(2))
    looks = LOOKS[:num_looks]
    unit, unit_weights = _points()
    bounds = [z * look**0.5 for look in looks]
    sums, mass = unit * bounds[0], unit_weights * bounds[0] * _density(unit * bounds[0], looks[0])
    for (before, look), bound in zip(pairwise(looks), bounds[1:], strict=True):
        after = unit * bound
        mass = unit_weights * bound * (_density(after[:, None] - sums, look - before) @ mass)
        sums = after
    return max(0.0, 1.0 - float(mass.sum()))


@cache
def _points() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the points of Gauss and Legendre from -1 to 1, and their weights."""
    points, weights = np.polynomial.legendre.leggauss(_NUM_POINTS)
    return points, weights


def _density(distance: NDArray[np.float64], variance: float) -> NDArray[np.float64]:
    result: NDArray[np.float64] = np.exp(-(distance**2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    return result


def _critical_z(chance: float, num_looks: int) -> float:
    """Return the z that noise exceeds with this chance, by bisection."""
    low, high = 0.0, _LARGEST_Z
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if chance_to_exceed(middle, num_looks) > chance else (low, middle)
    return high


ONE_LOOK = level_of(1)
"""Level of a number of pairs that was fixed beforehand: the usual 95 % and 90 %."""


Interval = tuple[int, int]

_MOST_IN_MEMORY = 2**17
"""Differences that are sorted all at once, as that is faster; of more only those are found that are asked for."""


@frozen
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


def location_of_pairs(values: NDArray[np.int64], b_second: NDArray[np.bool_]) -> int:
    """Return the location of one arm, int64[P] ns of its half of each pair, by the estimator of `shift_of_pairs`.

    It is the median of the means of two halves, one of an AB pair and one of a BA pair: of an arm B whose steps all
    take no time, the shift would be exactly this. Of pairs of one order only it is the median.
    """
    if b_second.all() or not b_second.any():
        return round(float(np.median(values)))
    return shift_between(values[b_second], -values[~b_second], parts=2, testable=False).delta


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
    differences = _Differences(x, y)

    def interval(z: float) -> Interval | None:
        k = rank_of_end(x.size, y.size, z) if testable else 0
        if not k:
            return None
        return round(differences.ordered(k) / parts), round(differences.ordered(len(differences) + 1 - k) / parts)

    return Shift(
        delta=round(differences.median() / parts),
        mean=round((float(x.mean()) - float(y.mean())) / parts),
        mean_error=math.hypot(_error_of_mean(x), _error_of_mean(y)) / parts,
        ci95=interval(level.z95),
        ci90=interval(level.z90),
        level=level,
        z_beyond=_largest_z(differences, parts, theta_ns) if testable else 0.0,
        z_beyond_0=_largest_z(differences, parts, 0.0) if testable else 0.0,
    )


class _Differences:
    """All differences x_i - y_j in ascending order, without a place for each of them where there are many."""

    def __init__(self, x: NDArray[np.int64], y: NDArray[np.int64]) -> None:
        self.x, self.y = np.sort(x), np.sort(y)
        self._all = np.sort(np.subtract.outer(x, y), axis=None) if len(self) <= _MOST_IN_MEMORY else None

    def __len__(self) -> int:
        return self.x.size * self.y.size

    def num_at_most(self, value: int) -> int:
        """Return how many differences are at most a value."""
        if self._all is not None:
            return int(np.searchsorted(self._all, value, "right"))
        return int((self.y.size - np.searchsorted(self.y, self.x - value, "left")).sum())

    def ordered(self, k: int) -> int:
        """Return the k-th smallest difference, k from 1: the least value that k differences do not exceed."""
        if self._all is not None:
            return int(self._all[k - 1])
        low, high = int(self.x[0] - self.y[-1]), int(self.x[-1] - self.y[0])
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.num_at_most(middle) >= k else (middle + 1, high)
        return low

    def median(self) -> float:
        return (self.ordered((len(self) + 1) // 2) + self.ordered(len(self) // 2 + 1)) / 2


def _largest_z(differences: _Differences, parts: int, bound: float) -> float:
    """Return the largest z at which the interval from these differences is beyond ±bound; 0 if it never is.

    The interval that leaves out k - 1 differences at each end is beyond if no more than those are not.
    """
    m, n = differences.x.size, differences.y.size
    most = _largest_that_rounds_to(math.floor(bound), parts)
    not_above, not_below = differences.num_at_most(most), len(differences) - differences.num_at_most(-most - 1)
    return max(0.0, (m * n / 2 - min(not_above, not_below) - 1) / _standard_error(m, n))


def _largest_that_rounds_to(value: int, parts: int) -> int:
    """Return the largest whole number whose `parts`-th part, rounded as an end of an interval, is at most a value."""
    candidate = math.floor(parts * (value + 0.5))
    return candidate if round(candidate / parts) <= value else candidate - 1


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
