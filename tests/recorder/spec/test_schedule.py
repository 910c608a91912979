"""The order of halves is balanced, interleaved, and the same on every rank."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from traceq.model import Arm
from traceq.recorder.spec.context import PairedBatches
from traceq.recorder.spec.schedule import (
    PAIRS_PER_GROUP,
    STEPS_ALONE,
    comparisons,
    group_sizes,
    pairs_alone,
    pairs_for,
    schedule,
)
from traceq.stats import LOOKS

ARMS = (Arm("off", "", baseline=True), Arm("on", ""), Arm("deferred", ""), Arm("absent", "", timed=False))
seeds = st.integers(0, 2**31)
pairs = st.integers(1, 8).map(lambda groups: groups * PAIRS_PER_GROUP)
plans = st.integers(1, len(LOOKS)).map(lambda num_looks: LOOKS[:num_looks])


@given(seeds, pairs)
def test_every_group_runs_eight_pairs_each_way(seed: int, num_pairs: int) -> None:
    for group in schedule(comparisons(ARMS), (num_pairs,), seed):
        assert Counter(group.b_second) == {True: 8, False: 8}


@given(seeds, pairs)
def test_every_comparison_gets_the_same_pairs_once(seed: int, num_pairs: int) -> None:
    groups = schedule(comparisons(ARMS), (num_pairs,), seed)
    for a, b in comparisons(ARMS):
        found = [group.first_pair + i for group in groups if (group.a, group.b) == (a, b) for i in range(16)]
        assert found == list(range(num_pairs))


@given(seeds, pairs)
def test_one_seed_gives_all_ranks_one_order(seed: int, num_pairs: int) -> None:
    assert schedule(comparisons(ARMS), (num_pairs,), seed) == schedule(comparisons(ARMS), (num_pairs,), seed)


@given(seeds, pairs)
def test_comparisons_take_turns_group_by_group(seed: int, num_pairs: int) -> None:
    groups = schedule(comparisons(ARMS), (num_pairs,), seed)
    for first in range(0, len(groups), 3):
        assert {(group.a, group.b) for group in groups[first : first + 3]} == set(comparisons(ARMS))


@given(plans)
def test_every_look_comes_at_the_end_of_a_group_and_none_is_longer_than_sixteen(looks: tuple[int, ...]) -> None:
    ends = list(accumulate(group_sizes(looks)))
    assert set(looks) <= set(ends)
    assert ends[-1] == looks[-1]
    assert set(group_sizes(looks)) <= {PAIRS_PER_GROUP, PAIRS_PER_GROUP // 2}


@given(seeds, plans)
def test_at_every_look_each_comparison_has_run_as_often_each_way(seed: int, looks: tuple[int, ...]) -> None:
    groups = schedule(comparisons(ARMS), looks, seed)
    for a, b in comparisons(ARMS):
        order = [second for group in groups if (group.a, group.b) == (a, b) for second in group.b_second]
        assert [order[:look].count(True) for look in looks] == [look // 2 for look in looks]
    assert {group.num_looks for group in groups} == {len(looks)}


def test_the_baseline_is_compared_with_each_timed_arm_and_with_itself() -> None:
    assert comparisons(ARMS) == (("off", "on"), ("off", "deferred"), ("off", "off"))


def test_an_arm_is_compared_with_the_one_it_names() -> None:
    arms = (*ARMS, Arm("off_alone", ""), Arm("on_alone", "", against="off_alone", repeats="on"))
    found = (("off", "on"), ("off", "deferred"), ("off", "off_alone"), ("off_alone", "on_alone"), ("off", "off"))
    assert comparisons(arms) == found


def test_a_pair_runs_b_second_where_it_says_so() -> None:
    group = schedule([("a", "b")], (16,), seed=0)[0]
    assert [group.halves(index) for index in range(16)] == [("a", "b") if b else ("b", "a") for b in group.b_second]


@given(st.integers(0, 10_000), st.sampled_from([1, 8]))
def test_at_least_the_steps_asked_for_are_measured_in_whole_groups(steps: int, steps_per_half: int) -> None:
    num_pairs = pairs_for(steps, steps_per_half)
    assert num_pairs % PAIRS_PER_GROUP == 0
    assert steps <= num_pairs * steps_per_half < steps + PAIRS_PER_GROUP * steps_per_half


@given(st.integers(1, 8), st.integers(1, 5))
def test_both_halves_of_a_pair_are_given_the_same_batches(steps_per_half: int, batch_size: int) -> None:
    batches = iter(PairedBatches(batch_size, steps_per_half))
    seen = set()
    for _ in range(4):
        first = [tuple(next(batches)) for _ in range(steps_per_half)]
        second = [tuple(next(batches)) for _ in range(steps_per_half)]
        assert first == second
        assert not seen & set(first)
        seen |= set(first)


@given(st.integers(0, 5_000), st.sampled_from([1, 8]), seeds)
def test_an_arm_alone_runs_the_steps_asked_for_each_order_as_often(steps: int, per_half: int, seed: int) -> None:
    num_pairs, counted = pairs_alone(steps, per_half), 2 * max(1, per_half - 1)
    assert 0 <= num_pairs * counted - steps < 2 * counted
    groups = schedule(comparisons(ARMS[:1]), (num_pairs,), seed, STEPS_ALONE // (2 * per_half))
    assert sum(len(group.b_second) for group in groups) == num_pairs
    assert all(2 * sum(group.b_second) == len(group.b_second) for group in groups)
    assert all(2 * per_half * len(group.b_second) <= STEPS_ALONE for group in groups)


def test_two_hundred_steps_of_an_arm_alone_are_one_group_of_just_two_hundred() -> None:
    assert (pairs_alone(200, 1), pairs_alone(300, 1), pairs_alone(200, 8)) == (100, 150, 16)
    assert group_sizes((100,), STEPS_ALONE // 2) == (100,)
