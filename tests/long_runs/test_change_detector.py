"""A rise in one of many series, which are judged together, against each series judged alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from traceq.long_runs.limits import (
    BASELINE,
    CLIP,
    FEWEST_AFTER,
    FEWEST_BEFORE,
    LEAST_GROWTH,
    LEAST_SCALE,
    MOST_AFTER,
    THRESHOLD,
)
from traceq.long_runs.onsets import ChangeDetector, Rise


class OneSeries:
    """A detector of one of `num_series`, value after value in plain Python."""

    def __init__(self, num_series: int = 1) -> None:
        self._values: list[float] = []
        # by the tail of the normal distribution, so that all series together alarm falsely as rarely as one
        self._threshold = (THRESHOLD**2 + 2 * np.log(num_series)) ** 0.5

    def scale(self, factor: float) -> None:
        self._values = [value * factor for value in self._values]

    def add(self, value: float) -> Rise | None:
        self._values.append(value)
        del self._values[: -BASELINE - MOST_AFTER]
        num = len(self._values)
        if num < FEWEST_BEFORE + FEWEST_AFTER:
            return None
        values = np.array(self._values)
        num_after = np.arange(FEWEST_AFTER, min(MOST_AFTER, num - FEWEST_BEFORE) + 1)
        reference = values[: -num_after[-1]]
        middle, (of_value, of_mean) = float(np.median(reference)), scale_of(reference)
        width = max(CLIP * of_value, 3 * LEAST_GROWTH)  # a quiet series has to be able to rise
        clipped = np.clip(values, middle - width, middle + width)
        sums = np.concatenate([[0.0], np.cumsum(clipped)])
        begin = num - num_after
        num_before = np.minimum(begin, BASELINE)
        after = (sums[-1] - sums[begin]) / num_after
        before = (sums[begin] - sums[begin - num_before]) / num_before
        error = of_mean * np.sqrt(1 / num_after + 1 / num_before)
        growth = after - before
        fall = (-growth - LEAST_GROWTH) / error
        if fall.max() > self._threshold:  # judge by what follows it
            del self._values[: -int(num_after[np.argmax(fall)])]
            return None
        score = (growth - LEAST_GROWTH) / error
        best = int(np.argmax(score))
        if score[best] <= self._threshold or not ChangeDetector._stays(values, int(num_after[best]), before[best]):
            return None
        rise = ChangeDetector._rise(values[begin[best] - num_before[best] :], float(error[best]))
        del self._values[: -rise.num_after]
        return rise


def scale_of(values: NDArray[np.float64]) -> tuple[float, float]:
    place = np.arange(len(values)) - (len(values) - 1) / 2
    values = values - place * (place @ values / (place @ place))  # drift is no noise
    deviation = np.abs(values - np.median(values))
    of_value = max(1.4826 * float(np.median(deviation)), LEAST_SCALE)
    clipped = np.clip(values, *(np.median(values) + np.array([-1, 1]) * CLIP * of_value))
    most = max(of_value, float(clipped.std(ddof=1)))
    for size in (2, 4, 8):
        num = len(clipped) // size
        if num < 6:
            break
        means = clipped[len(clipped) - num * size :].reshape(num, size).mean(axis=1)
        most = max(most, float(means.std(ddof=1)) * size**0.5)
    return of_value, most * (1 + 2 / len(values) ** 0.5)


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.sampled_from([0.001, 0.01, 0.1]))
def test_series_that_are_judged_together_rise_as_each_would_alone(seed: int, num_series: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    num = 260
    values = 1 + noise * rng.standard_t(3, (num, num_series))
    for series, (begin, end) in enumerate(rng.integers(0, num, (num_series, 2))):
        values[begin:, series] += rng.choice([-0.3, 0.0, 0.1, 0.3])
        values[end:, series] += rng.choice([-0.1, 0.0, 0.05]) * np.arange(num - end) / 50
    together, alone = ChangeDetector(num_series), [OneSeries(num_series) for _ in range(num_series)]
    for number, row in enumerate(values):
        if number == num // 2:
            for detector in (together, *alone):
                detector.scale(0.9)
        rises = together.add(row)
        expected = {index: rise for index, each in enumerate(alone) if (rise := each.add(float(row[index])))}
        assert list(rises) == list(expected)
        for index, rise in rises.items():
            other = expected[index]
            assert (rise.num_before, rise.num_after, rise.growth) == (other.num_before, other.num_after, other.growth)
            assert rise.half_width == pytest.approx(other.half_width, rel=1e-12)
            assert rise.is_ramp == other.is_ramp
