"""Looking often and stopping early does not make a recording wrong more often."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_pairs import MS, orders_by_statistic, pairs_of
from numpy.typing import NDArray

from traceq.errors import UnreadableInput
from traceq.model import Pairs
from traceq.stats import LOOKS, compare_pairs
from traceq.stats.hodges_lehmann import ONE_LOOK, level_of, rank_of_end

every_plan = pytest.mark.parametrize("num_looks", range(1, len(LOOKS) + 1))


def chance_to_cross(looks: Sequence[int], z: float, num_points: int = 401) -> float:
    """How often a random walk is `z` of its standard deviations from 0 at any look, by integrating from look to look.

    Armitage, McPherson and Rowe (1969), Journal of the Royal Statistical Society A 132, 235.
    """

    def points(look: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        where = np.linspace(-1, 1, num_points) * z * math.sqrt(look)
        weight = np.full(num_points, where[1] - where[0])
        weight[[0, -1]] /= 2
        return where, weight

    def density(distance: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
        result: NDArray[np.float64] = np.exp(-(distance**2) / (2 * steps)) / math.sqrt(2 * math.pi * steps)
        return result

    where, weight = points(looks[0])
    inside = density(where, looks[0])
    for before, look in pairwise(looks):
        after, weight_after = points(look)
        inside = density(after[:, None] - where, look - before) @ (inside * weight)
        where, weight = after, weight_after
    return 1 - float(inside @ weight)


@every_plan
def test_the_levels_make_all_looks_together_miss_as_often_as_they_say(num_looks: int) -> None:
    level = level_of(num_looks)
    assert chance_to_cross(LOOKS[:num_looks], level.z95) == pytest.approx(0.05, abs=0.0003)
    assert chance_to_cross(LOOKS[:num_looks], level.z90) == pytest.approx(0.10, abs=0.0005)


def test_without_them_eleven_looks_would_miss_in_a_quarter_of_all_recordings() -> None:
    assert chance_to_cross(LOOKS, ONE_LOOK.z95) == pytest.approx(0.246, abs=0.001)


@every_plan
def test_no_look_covers_less_than_its_level(num_looks: int) -> None:
    level = level_of(num_looks)
    for num_pairs in (16, 24, 32):
        m = num_pairs // 2
        orders = orders_by_statistic(m, m)
        for z in (level.z95, level.z90):
            missed = 2 * sum(orders[: rank_of_end(m, m, z)]) / math.comb(2 * m, m)
            assert 0 < missed <= math.erfc(z / math.sqrt(2)) * 1.02, (m, z)


@given(st.integers(1, len(LOOKS) - 1))
def test_one_more_look_asks_for_a_wider_interval(num_looks: int) -> None:
    fewer, more = level_of(num_looks), level_of(num_looks + 1)
    assert fewer.z95 < more.z95
    assert fewer.z90 < more.z90


@pytest.mark.parametrize("num_looks", [-1, 0, len(LOOKS) + 1])
def test_pairs_of_an_unknown_plan_are_refused(num_looks: int) -> None:
    pairs = Pairs("off", "on", np.array([True, False]), np.ones((1, 2), np.int64), np.ones((1, 2), np.int64), num_looks)
    with pytest.raises(UnreadableInput, match=f"off against on: {num_looks} looks; .* 11$"):
        compare_pairs(pairs)


def test_the_verdict_of_a_recording_that_might_have_gone_on_is_stricter_and_says_so() -> None:
    after, before = [0, 10, 20, 30, 40, 50, 60, 70], [-1000, -1010, -1020, -1030, -1040, -1050, -1060, -1070]
    fixed = pairs_of([5000] * 16, [5000 + change for change in after + before], [True] * 8 + [False] * 8)
    planned = Pairs("off", "on", fixed.b_second, fixed.first_ns, fixed.second_ns, num_looks=11)
    # 64 differences, each 500 + 5 * (i + j); k = 13 of them are cut off each end, and 6 where there may be eleven looks
    assert compare_pairs(fixed).ci95_ns == (520, 550)
    assert compare_pairs(planned).ci95_ns == (510, 560)
    assert compare_pairs(planned).delta_ns == compare_pairs(fixed).delta_ns == 535
    assert "95 % CI over 11 looks, +510 ns to" in compare_pairs(planned).verdict.reason


@pytest.mark.slow
def test_a_recording_that_stops_when_it_knows_rarely_claims_what_is_not_so() -> None:
    rng = np.random.default_rng(5)
    looks, theta = LOOKS[:6], MS // 2
    claims = [first_claim(rng, delta_ns=theta, looks=looks) for _ in range(400)]
    assert claims.count("material") / 400 <= 0.03  # at the edge neither claim is true; 2.5 and 5 % are allowed
    assert claims.count("in_the_noise") / 400 <= 0.065


def first_claim(rng: np.random.Generator, *, delta_ns: int, looks: Sequence[int]) -> str:
    """What a recording of 100 ms steps with 2 % of noise says when it stops."""
    is_second = np.concatenate([rng.permutation(np.arange(size) < size // 2) for size in np.diff([0, *looks])])
    noise = rng.normal(scale=2 * MS, size=(2, len(is_second)))
    first = (100 * MS + noise[0] + delta_ns * ~is_second).astype(np.int64)[None]
    second = (100 * MS + noise[1] + delta_ns * is_second).astype(np.int64)[None]
    for look in looks:
        so_far = Pairs("off", "on", is_second[:look], first[:, :look], second[:, :look], num_looks=len(looks))
        verdict = compare_pairs(so_far).verdict
        if verdict.is_final:
            break
    return verdict.name
