"""Confidence interval of a mean of few values, or of many that are autocorrelated, by Student's t."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from traceq.stats.limits import BELOW

BLOCK = 16
"""Steps whose mean or median counts as one value: neighbouring steps are not independent."""

_POINTS = np.linspace(0.0, 1.0, 2001)

Values = NDArray[np.float64]


def block_means(values: Values) -> Values:
    """float64[N // BLOCK]: means of consecutive values; the values themselves if they are fewer than two blocks."""
    num = len(values) // BLOCK
    if num < 2:
        return values
    means: Values = values[: num * BLOCK].reshape(num, BLOCK).mean(axis=1)
    return means


def chance_of_mean(values: Values, bound: float = 0.0) -> float:
    """Return the chance of a mean so far above the bound if the true one is at most the bound; 1 for a single value."""
    if len(values) < 2:
        return 1.0
    excess, error = float(values.mean()) - bound, float(values.std(ddof=1)) / math.sqrt(len(values))
    if error == 0:
        return 0.0 if excess > 0 else 1.0
    return _tail(excess / error, len(values) - 1)


def lowest_mean(values: Values) -> float:
    """Return the lower end of the 95 % interval of the mean; -inf for a single value."""
    if len(values) < 2:
        return -math.inf
    return float(values.mean()) - _quantile(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))


def interval_of_mean(values: Values) -> tuple[float, float]:
    """Return the ends of the 95 % interval of the mean of steps, which blocks of them decide."""
    blocks = block_means(values)
    return lowest_mean(blocks), -lowest_mean(-blocks)


def are_means_apart(a: Values, b: Values) -> bool:
    """Return whether the 95 % interval of the difference of two means excludes 0 (Welch's test); two values or more."""
    parts = [float(values.var(ddof=1)) / len(values) for values in (a, b)]
    delta, error = abs(float(b.mean()) - float(a.mean())), math.sqrt(sum(parts))
    if error == 0:
        return delta > 0
    degrees = sum(parts) ** 2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True))
    return delta > _quantile(int(degrees)) * error


@cache
def _quantile(degrees: int) -> float:
    """Return the t that Student's t exceeds with BELOW."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(middle, degrees) > BELOW else (low, middle)
    return high


def _tail(t: float, degrees: int) -> float:
    """Return the chance that Student's t exceeds `t`; with t = sqrt(degrees) tan(u) it has the density cos(u)^(d-1)."""
    angle = math.atan(abs(t) / math.sqrt(degrees))
    above = 0.5 * (1 - _area(angle, degrees) / _half(degrees))
    return above if t >= 0 else 1 - above


@cache
def _half(degrees: int) -> float:
    """Return the area under half of the density."""
    return _area(math.pi / 2, degrees)


def _area(angle: float, degrees: int) -> float:
    """Return the area under the density from 0 to an angle."""
    heights = np.cos(_POINTS * angle) ** (degrees - 1)
    return angle * float(np.mean(heights[1:] + heights[:-1])) / 2
