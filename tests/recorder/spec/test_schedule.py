"""The order of halves is balanced, interleaved, and the same on every rank."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from traceq.model import Arm
from traceq.recorder.spec.plan import (
    PAIRS_PER_BLOCK,
    SINGLE_ARM_STEPS_PER_BLOCK,
    block_sizes,
    comparisons,
    pairs_for,
    pairs_for_single_arm,
    schedule,
)
from traceq.recorder.spec.recipe import PairedBatches
from traceq.stats import LOOKS

ARMS = (Arm("off", "", baseline=True), Arm("on", ""), Arm("deferred", ""), Arm("absent", "", timed=False))
seeds = st.integers(0, 2**31)
pairs = st.integers(1, 8).map(lambda num_blocks: num_blocks * PAIRS_PER_BLOCK)
plans = st.integers(1, len(LOOKS)).map(lambda num_looks: LOOKS[:num_looks])


@given(seeds, pairs)
def test_every_block_runs_eight_pairs_each_way(seed: int, num_pairs: int) -> None:
    for block in schedule(comparisons(ARMS), (num_pairs,), seed):
        assert Counter(block.b_second) == {True: 8, False: 8}


@given(seeds, pairs)
def test_every_comparison_gets_the_same_pairs_once(seed: int, num_pairs: int) -> None:
    blocks = schedule(comparisons(ARMS), (num_pairs,), seed)
    for a, b in comparisons(ARMS):
        pairs_run = [block.first_pair + i for block in blocks if (block.a, block.b) == (a, b) for i in range(16)]
        assert pairs_run == list(range(num_pairs))


@given(seeds, pairs)
def test_one_seed_gives_all_ranks_one_order(seed: int, num_pairs: int) -> None:
    assert schedule(comparisons(ARMS), (num_pairs,), seed) == schedule(comparisons(ARMS), (num_pairs,), seed)


@given(seeds, pairs)
def test_comparisons_alternate_block_by_block(seed: int, num_pairs: int) -> None:
    blocks = schedule(comparisons(ARMS), (num_pairs,), seed)
    for first in range(0, len(blocks), 3):
        assert {(block.a, block.b) for block in blocks[first : first + 3]} == set(comparisons(ARMS))


@given(plans)
def test_every_look_is_at_the_end_of_a_block_and_none_is_longer_than_sixteen(looks: tuple[int, ...]) -> None:
    ends = list(accumulate(block_sizes(looks)))
    assert set(looks) <= set(ends)
    assert ends[-1] == looks[-1]
    assert set(block_sizes(looks)) <= {PAIRS_PER_BLOCK, PAIRS_PER_BLOCK // 2}


@given(seeds, plans)
def test_at_every_look_each_comparison_has_run_as_often_each_way(seed: int, looks: tuple[int, ...]) -> None:
    blocks = schedule(comparisons(ARMS), looks, seed)
    for a, b in comparisons(ARMS):
        order = [second for block in blocks if (block.a, block.b) == (a, b) for second in block.b_second]
        assert [order[:look].count(True) for look in looks] == [look // 2 for look in looks]
    assert {block.num_looks for block in blocks} == {len(looks)}


def test_the_baseline_is_compared_with_each_timed_arm_and_with_itself() -> None:
    assert comparisons(ARMS) == (("off", "on"), ("off", "deferred"), ("off", "off"))


def test_an_arm_is_compared_with_the_one_it_names() -> None:
    arms = (*ARMS, Arm("off_alone", ""), Arm("on_alone", "", against="off_alone", repeats="on"))
    compared = (("off", "on"), ("off", "deferred"), ("off", "off_alone"), ("off_alone", "on_alone"), ("off", "off"))
    assert comparisons(arms) == compared


def test_a_pair_runs_b_second_where_it_says_so() -> None:
    block = schedule([("a", "b")], (16,), seed=0)[0]
    assert [block.halves(index) for index in range(16)] == [("a", "b") if b else ("b", "a") for b in block.b_second]


@given(st.integers(0, 10_000), st.sampled_from([1, 8]))
def test_at_least_the_steps_asked_for_are_measured_in_whole_blocks(steps: int, steps_per_half: int) -> None:
    num_pairs = pairs_for(steps, steps_per_half)
    assert num_pairs % PAIRS_PER_BLOCK == 0
    assert steps <= num_pairs * steps_per_half < steps + PAIRS_PER_BLOCK * steps_per_half


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


@given(st.integers(1, 8), st.integers(1, 5), st.integers(1, 9))
def test_a_dataset_with_a_length_is_read_again_and_again(steps_per_half: int, batch_size: int, length: int) -> None:
    endless, finite = (iter(PairedBatches(batch_size, steps_per_half, size)) for size in (None, length))
    for _ in range(40):
        assert next(finite) == [index % length for index in next(endless)]


@given(st.integers(0, 5_000), st.sampled_from([1, 8]), seeds)
def test_an_arm_alone_runs_the_steps_asked_for_each_order_as_often(steps: int, per_half: int, seed: int) -> None:
    num_pairs, counted = pairs_for_single_arm(steps, per_half), 2 * max(1, per_half - 1)
    assert 0 <= num_pairs * counted - steps < 2 * counted
    blocks = schedule(comparisons(ARMS[:1]), (num_pairs,), seed, SINGLE_ARM_STEPS_PER_BLOCK // (2 * per_half))
    assert sum(len(block.b_second) for block in blocks) == num_pairs
    assert all(2 * sum(block.b_second) == len(block.b_second) for block in blocks)
    assert all(2 * per_half * len(block.b_second) <= SINGLE_ARM_STEPS_PER_BLOCK for block in blocks)


def test_two_hundred_steps_of_an_arm_alone_are_one_block_of_just_two_hundred() -> None:
    assert (pairs_for_single_arm(200, 1), pairs_for_single_arm(300, 1), pairs_for_single_arm(200, 8)) == (100, 150, 16)
    assert block_sizes((100,), SINGLE_ARM_STEPS_PER_BLOCK // 2) == (100,)
