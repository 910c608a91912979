"""A change between traced steps is told from what steps of the same code differ by, also where some lose their core."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from traceq.compare.account_contributions import is_number_of_chance
from traceq.compare.cause_names import jitter_name
from traceq.compare.run_to_run import clear_change

NUM_STEPS = (5, 8)


def is_clear(of_a: list[int], of_b: list[int]) -> bool:
    return clear_change(np.array(of_b, np.float64) - of_a) != 0


def test_one_long_step_does_not_hide_what_all_others_agree_in() -> None:
    stalled = [1_223_000, 1_395_000, 1_237_000, 1_269_000, 1_223_000]
    longer = np.array(stalled, np.float64) - [139_000, 3_401_000, 131_000, 197_000, 194_000]
    assert clear_change(longer) == pytest.approx(1_084_000, abs=60_000)
    assert not is_clear([139_000, 3_401_000, 131_000, 3_197_000, 2_904_000], stalled)  # too few agree
    assert not is_clear([139_000, 3_401_000, 131_000, 197_000], stalled[:4])


def test_one_long_step_is_no_change() -> None:
    assert not is_clear([100, 101, 99, 100, 102], [101, 100, 4_000, 99, 102])
    assert not is_clear([100, 3_000, 99, 100, 2_000], [101, 100, 4_000, 99, 102])


@pytest.mark.parametrize(
    ("of_a", "of_b", "is_chance"),
    [
        ([10, 14, 12], [13, 11, 16], True),
        ([10, 12, 11], [13, 14, 13], True),  # apart by less than the steps of one side
        ([10, 12, 11], [20, 21, 20], False),
        ([0, 0, 0], [0, 1, 0], False),  # every third step does what A never does
        ([1, 1, 1], [0, 1, 0], False),
        ([64, 512, 512], [512, 512, 512], True),  # the last batch of an epoch
        ([0, 0, 0], [0, 0, 4], False),
        ([1, 1, 1, 1, 1], [1, 0, 1, 0, 1], False),  # every second step does without
        ([2, 2], [2, 1], False),
        ([4], [5], False),
    ],
)
def test_numbers_that_vary_on_both_sides_tell_a_change_only_far_apart(
    of_a: list[int], of_b: list[int], is_chance: bool
) -> None:
    assert is_number_of_chance(of_a, of_b) == is_chance
    assert is_number_of_chance(of_b, of_a) == is_chance


@pytest.mark.parametrize("num_steps", NUM_STEPS)
def test_steps_of_the_same_code_of_which_some_lose_their_core_seldom_differ(num_steps: int) -> None:
    rng = np.random.default_rng(7)

    def side() -> NDArray[np.int64]:
        waits = (rng.random(num_steps) < 0.4) * rng.exponential(4_000_000, num_steps)
        return np.asarray(100_000 + rng.normal(scale=3_000, size=num_steps) + waits).astype(np.int64)

    is_found = [is_clear(side().tolist(), side().tolist()) for _ in range(1_000)]
    assert sum(is_found) <= 20


@pytest.mark.parametrize("num_steps", NUM_STEPS)
def test_a_wait_is_found_in_most_recordings_in_which_every_fifth_step_loses_its_core(num_steps: int) -> None:
    rng = np.random.default_rng(7)

    def side(wait_ns: int) -> NDArray[np.int64]:
        waits = (rng.random(num_steps) < 0.2) * rng.exponential(4_000_000, num_steps)
        return np.asarray(wait_ns + rng.normal(scale=3_000, size=num_steps) + waits).astype(np.int64)

    is_found = [is_clear(side(100_000).tolist(), side(1_100_000).tolist()) for _ in range(300)]
    assert sum(is_found) >= 220


@pytest.mark.parametrize(
    ("num", "ns", "sd_ns", "size"),
    [
        (83, 5_220_000, 2_700_000, "within"),
        (83, -5_220_000, 1_420_000, "beyond"),
        (1, 20, 15, "within"),
        (1, 40, 15, "beyond"),
        (3, 2, 0, "within"),  # roundings
    ],
)
def test_a_sum_beyond_its_jitter_is_not_called_within_it(num: int, ns: float, sd_ns: float, size: str) -> None:
    name = jitter_name(num, ns, sd_ns)
    assert name.startswith(f"{num} kind{'s' * (num > 1)} of work")
    assert [word for word in ("within", "beyond") if word in name] == [size]
