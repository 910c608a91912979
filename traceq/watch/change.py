"""When a series of values rose and stayed there: a likelihood ratio over all recent moments, with correlated noise.

Values are parts of a usual step. The test is of the mean after a moment against that before, less the growth that
counts (`LEAST_GROWTH`), in standard errors of a variance that holds the correlation of values: the largest of batch
means of 1, 2, 4 and 8 values (Schmeiser 1982).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.watch.limits import (
    BASELINE,
    CLIP,
    FEWEST_AFTER,
    FEWEST_BEFORE,
    LEAST_GROWTH,
    LEAST_SCALE,
    MOST_AFTER,
    THRESHOLD,
)

_BATCHES = (1, 2, 4, 8)
_FEWEST_BATCHES = 6
_FEWEST_SURE = 3
"""Values after the begin of a rise: of fewer there is no median."""
_NORMAL_95 = 1.96
_LEAST_CLIP = 3
_MAD_TO_SD = 1.4826


@frozen
class Rise:
    """A rise of the last `num_after` values over the `num_before` ones before them, with its 95 % interval."""

    num_before: int
    num_after: int
    growth: float
    half_width: float
    is_ramp: bool


class ChangeDetector:
    """Detector of a rise, in one of `num_series`; a fall is followed in silence. Memory and time are fixed."""

    def __init__(self, num_series: int = 1) -> None:
        self._values: list[float] = []
        # by the tail of the normal distribution, so that all series together alarm falsely as rarely as one
        self._threshold = (THRESHOLD**2 + 2 * np.log(num_series)) ** 0.5

    def scale(self, factor: float) -> None:
        """Multiply the values so far, as what they are parts of is another."""
        self._values = [value * factor for value in self._values]

    def add(self, value: float) -> Rise | None:
        """Add a value; return the rise that is beyond doubt with it, after which the detector begins anew."""
        self._values.append(value)
        del self._values[: -BASELINE - MOST_AFTER]
        num = len(self._values)
        if num < FEWEST_BEFORE + FEWEST_AFTER:
            return None
        values = np.array(self._values)
        num_after = np.arange(FEWEST_AFTER, min(MOST_AFTER, num - FEWEST_BEFORE) + 1)
        reference = values[: -num_after[-1]]
        middle, scale = float(np.median(reference)), _scale(reference)
        width = max(CLIP * scale.of_value, _LEAST_CLIP * LEAST_GROWTH)  # a quiet series has to be able to rise
        clipped = np.clip(values, middle - width, middle + width)
        sums = np.concatenate([[0.0], np.cumsum(clipped)])
        begin = num - num_after
        num_before = np.minimum(begin, BASELINE)
        after = (sums[-1] - sums[begin]) / num_after
        before = (sums[begin] - sums[begin - num_before]) / num_before
        error = scale.of_mean * np.sqrt(1 / num_after + 1 / num_before)
        growth = after - before
        if ((-growth - LEAST_GROWTH) / error).max() > self._threshold:
            self._restart(int(num_after[np.argmax((-growth - LEAST_GROWTH) / error)]))
            return None
        score = (growth - LEAST_GROWTH) / error
        best = int(np.argmax(score))
        if score[best] <= self._threshold or not self._stays(values, int(num_after[best]), before[best]):
            return None
        rise = self._rise(values[begin[best] - num_before[best] :], float(error[best]))
        self._restart(rise.num_after)
        return rise

    @staticmethod
    def _stays(values: NDArray[np.float64], num_after: int, before: float) -> bool:
        """Return whether three in four values since then are above the least growth: a few high ones make no level."""
        return bool(np.quantile(values[-num_after:], 0.25) > before + LEAST_GROWTH)

    @staticmethod
    def _rise(values: NDArray[np.float64], error: float) -> Rise:
        """Return the rise by the best fit of one: a jump from one level to another, or a line that begins to climb."""
        begins = np.arange(_FEWEST_SURE, len(values) - _FEWEST_SURE + 1)
        since = np.arange(len(values)) - begins[:, None]
        jumps, climbs = _explained(values, since >= 0), _explained(values, np.maximum(since + 1, 0))
        begin = int(begins[np.argmax(jumps)])
        growth = float(np.median(values[begin:]) - np.median(values[:begin]))
        return Rise(begin, len(values) - begin, growth, _NORMAL_95 * error, bool(climbs.max() > jumps.max()))

    def _restart(self, num_after: int) -> None:
        """Keep the values since a change, and judge by them what follows."""
        del self._values[:-num_after]


def _explained(values: NDArray[np.float64], shapes: NDArray[Any]) -> NDArray[np.float64]:
    """Return how much of the variance of values each shape explains beside a constant: float64[len(shapes)]."""
    centred = shapes - shapes.mean(axis=1, keepdims=True)
    explained: NDArray[np.float64] = (centred @ (values - values.mean())) ** 2 / (centred**2).sum(axis=1)
    return explained


@frozen
class _Scale:
    of_value: float
    of_mean: float


def _scale(values: NDArray[np.float64]) -> _Scale:
    """Return the standard deviation of a value, and of a mean times the root of its number of values."""
    place = np.arange(len(values)) - (len(values) - 1) / 2
    values = values - place * (place @ values / (place @ place))  # drift is no noise
    deviation = np.abs(values - np.median(values))
    of_value = max(_MAD_TO_SD * float(np.median(deviation)), LEAST_SCALE)
    clipped = np.clip(values, *(np.median(values) + np.array([-1, 1]) * CLIP * of_value))
    most = max(of_value, float(clipped.std(ddof=1)))
    for size in _BATCHES[1:]:
        num = len(clipped) // size
        if num < _FEWEST_BATCHES:
            break
        means = clipped[len(clipped) - num * size :].reshape(num, size).mean(axis=1)
        most = max(most, float(means.std(ddof=1)) * size**0.5)
    return _Scale(of_value, most * (1 + 2 / len(values) ** 0.5))
