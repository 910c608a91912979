"""A late rank is late step after step; noise, a few slow steps and a busy minute are not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from traceq.stats.means import block_means, chance_of_mean, lowest_mean
from traceq.stats.ranks import late_ranks, lateness_of_ranks


def ranks_of(seed: int, *, num_ranks: int = 2, num: int = 400, more_ms: float = 0.0) -> NDArray[np.float64]:
    """Lateness of ranks that work 40 ms of a step of 100 ms, with noise of autocorrelation 0.7; rank 0 works longer."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(num_ranks, num))
    for step in range(1, num):
        noise[:, step] = 0.7 * noise[:, step - 1] + math.sqrt(1 - 0.7**2) * noise[:, step]
    work = 40 + 2 * noise
    work[0] += more_ms
    step = np.full((num_ranks, num), 100.0)
    return lateness_of_ranks(work, step - work, step)


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_symmetric_ranks_have_no_late_one(num_ranks: int) -> None:
    late = [late_ranks(ranks_of(seed, num_ranks=num_ranks)) for seed in range(40)]
    assert sum(map(bool, late)) <= 2


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_a_rank_that_works_a_tenth_longer_is_late(num_ranks: int) -> None:
    late = [late_ranks(ranks_of(seed, num_ranks=num_ranks, more_ms=4)) for seed in range(20)]
    assert late.count((0,)) >= 18
    assert set(late) <= {(0,), ()}


def test_too_few_steps_tell_nothing() -> None:
    assert late_ranks(ranks_of(0, num=199, more_ms=20)) == ()
    assert late_ranks(ranks_of(0, num=200, more_ms=20)) == (0,)
    assert late_ranks(ranks_of(0, num=399, num_ranks=8, more_ms=20)) == ()


def test_a_rank_that_is_slow_for_half_of_the_recording_is_not_late() -> None:
    busy = ranks_of(3)
    busy[0, 200:] += 0.2
    assert late_ranks(busy) == ()


def test_a_rank_that_is_on_time_for_an_eighth_of_the_recording_is_not_late() -> None:
    late = ranks_of(0, more_ms=20)
    assert late_ranks(late) == (0,)
    late[0, 150:200] -= 0.2  # the median of the second quarter is still above 1 %
    assert np.median(late[0, 100:200]) > 0.01
    assert late_ranks(late) == ()


def test_the_median_of_the_others_is_what_a_rank_is_compared_with() -> None:
    work = np.array([[30.0], [31.0], [36.0]])
    assert lateness_of_ranks(work, 50 - work, np.full((3, 1), 50.0))[:, 0] == pytest.approx([-0.07, -0.04, 0.11])


@pytest.mark.parametrize(("degrees", "t"), [(1, 12.706), (2, 4.303), (10, 2.228), (30, 2.042)])
def test_the_interval_of_a_mean_is_students(degrees: int, t: float) -> None:
    values = np.arange(degrees + 1.0)
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert lowest_mean(values) == pytest.approx(values.mean() - t * error, rel=1e-3)
    assert chance_of_mean(values, values.mean() - t * error) == pytest.approx(0.025, rel=2e-3)


def test_few_values_are_their_own_blocks_and_one_has_no_interval() -> None:
    assert block_means(np.arange(31.0)).tolist() == list(range(31))
    assert block_means(np.arange(33.0)).tolist() == [7.5, 23.5]
    assert (chance_of_mean(np.ones(1)), lowest_mean(np.ones(1))) == (1.0, -math.inf)
    assert (chance_of_mean(np.ones(3)), chance_of_mean(np.ones(3), 1.0)) == (0.0, 1.0)
