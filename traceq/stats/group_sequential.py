"""Confidence levels for group-sequential tests, in which pairs are tested more than once.

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
