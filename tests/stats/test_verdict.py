"""The verdict: what it estimates, what it refuses to say, and how often it is right."""

from __future__ import annotations

import re
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_pairs import MS, orders_by_statistic, pairs_of, recording, simulate

from traceq.errors import UnreadableInput, UsageFault
from traceq.model import Pairs
from traceq.stats import Comparison, compare_pairs, compare_values
from traceq.stats.hodges_lehmann import ONE_LOOK, rank_of_end


def swapped(pairs: Pairs) -> Pairs:
    """The same recording with the arms' names exchanged."""
    return Pairs(pairs.b, pairs.a, ~pairs.b_second, pairs.first_ns, pairs.second_ns)


def codes(comparison: Comparison) -> set[str]:
    return {caveat.code for caveat in comparison.caveats}


@st.composite
def recordings(draw: st.DrawFn) -> Pairs:
    num_ranks, num = draw(st.integers(1, 3)), draw(st.integers(1, 20))
    half = st.lists(st.integers(1, 10**9), min_size=num, max_size=num)
    rows = st.lists(half, min_size=num_ranks, max_size=num_ranks)
    return pairs_of(draw(rows), draw(rows), draw(st.lists(st.booleans(), min_size=num, max_size=num)))


def test_a_difference_worked_out_by_hand() -> None:
    pairs = pairs_of([100, 110, 104, 104], [104, 103, 110, 100], [True, False, True, False])
    # AB changes 4, 6; BA changes -7, -4; all differences 8, 10, 11, 13; their median 10.5; half of it 5.25
    result = compare_pairs(pairs)
    assert (result.a_ns, result.b_ns, result.delta_ns, result.mean_delta_ns) == (102, 107, 5, 5)
    assert result.delta_pct == pytest.approx(100 * 5 / 102)
    assert (result.num_pairs, result.ci95_ns, result.ci90_ns) == (4, None, None)


def test_an_interval_worked_out_by_hand() -> None:
    after, before = [0, 10, 20, 30], [-1000, -1100, -1200, -1400]
    pairs = pairs_of([5000] * 8, [5000 + change for change in after + before], [True] * 4 + [False] * 4)
    # 16 differences: k = floor(8 - 1.96 * sqrt(12)) = 1 and floor(8 - 1.645 * sqrt(12)) = 2
    result = compare_pairs(pairs)
    assert result.ci95_ns == (500, 715)  # (0 + 1000) / 2, (30 + 1400) / 2
    assert result.ci90_ns == (505, 710)  # (10 + 1000) / 2, (20 + 1400) / 2
    assert result.delta_ns == 582  # the middle two are 1130 / 2 and 1200 / 2: 582.5, to even


def test_the_jobs_step_is_the_slowest_rank_of_each_half() -> None:
    pairs = pairs_of([[10, 30], [20, 5]], [[12, 7], [21, 24]], [True, False])
    result = compare_pairs(pairs)
    assert (result.a_ns, result.b_ns) == (22, 26)  # A 20, 24; B 21, 30: 25.5, to even
    assert result.delta_ns == 4  # (21 - 20 - (24 - 30)) / 2 = 3.5, to even
    assert result.rank_delta_ns == (12, -9)  # 12.5 and -9, each from its own halves


@given(recordings())
def test_swapping_the_arms_negates_the_difference(pairs: Pairs) -> None:
    there, back = compare_pairs(pairs), compare_pairs(swapped(pairs))
    assert back.delta_ns == -there.delta_ns
    assert back.mean_delta_ns == -there.mean_delta_ns
    assert back.rank_delta_ns == tuple(-delta for delta in there.rank_delta_ns)
    assert back.ci95_ns == (there.ci95_ns and (-there.ci95_ns[1], -there.ci95_ns[0]))
    assert (back.a_ns, back.b_ns) == (there.b_ns, there.a_ns)


@given(recordings(), st.integers(0, 10**6))
def test_the_same_time_added_to_both_arms_changes_no_difference(pairs: Pairs, extra: int) -> None:
    slower = Pairs(pairs.a, pairs.b, pairs.b_second, pairs.first_ns + extra, pairs.second_ns + extra)
    there, here = compare_pairs(pairs), compare_pairs(slower)
    assert (here.delta_ns, here.ci95_ns, here.ci90_ns) == (there.delta_ns, there.ci95_ns, there.ci90_ns)


@given(recordings(), st.integers(0, 10**6))
def test_what_it_costs_to_come_second_cancels(pairs: Pairs, cost: int) -> None:
    tired = Pairs(pairs.a, pairs.b, pairs.b_second, pairs.first_ns, pairs.second_ns + cost)
    there, here = compare_pairs(pairs), compare_pairs(tired)
    both_orders = 0 < np.count_nonzero(pairs.b_second) < len(pairs.b_second)
    if both_orders:
        assert (here.delta_ns, here.ci95_ns) == (there.delta_ns, there.ci95_ns)
    else:
        assert codes(here) >= {"one_order"}


@given(recordings(), st.randoms(use_true_random=False))
def test_the_order_of_ranks_and_of_pairs_is_irrelevant(pairs: Pairs, random: object) -> None:
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    ranks, order = rng.permutation(len(pairs.first_ns)), rng.permutation(len(pairs.b_second))
    shuffled = Pairs(
        pairs.a, pairs.b, pairs.b_second[order], pairs.first_ns[ranks][:, order], pairs.second_ns[ranks][:, order]
    )
    there, here = compare_pairs(pairs), compare_pairs(shuffled)
    assert (here.delta_ns, here.ci95_ns, here.verdict) == (there.delta_ns, there.ci95_ns, there.verdict)
    assert here.rank_delta_ns == tuple(there.rank_delta_ns[rank] for rank in ranks)


@pytest.mark.parametrize(("z", "outside"), [(ONE_LOOK.z95, 0.05), (ONE_LOOK.z90, 0.10)])
def test_no_count_of_pairs_makes_the_interval_cover_less_than_it_says(z: float, outside: float) -> None:
    for m in range(1, 17):
        for n in range(1, 17):
            k = rank_of_end(m, n, z)
            missed = 2 * sum(orders_by_statistic(m, n)[:k]) / comb(m + n, m)
            assert missed <= outside, (m, n, k)


@pytest.mark.parametrize(
    ("num_ab", "num_ba", "has_interval"), [(1, 40, False), (3, 3, False), (2, 12, True), (4, 4, True)]
)
def test_too_few_pairs_give_no_interval(num_ab: int, num_ba: int, has_interval: bool) -> None:
    num = num_ab + num_ba
    pairs = pairs_of([100] * num, range(101, 101 + num), [True] * num_ab + [False] * num_ba)
    result = compare_pairs(pairs)
    assert (result.ci95_ns is not None) is has_interval
    if not has_interval:
        assert (result.verdict.name, result.verdict.pairs_needed) == ("inconclusive", 16)
        assert result.verdict.reason.startswith(f"{num} pairs give no confidence")
        assert result.verdict.reason.endswith("16, 8 in each order")


@pytest.mark.parametrize(
    ("b_ns", "jitter_ns", "name"),
    [
        (100 * MS, MS // 10, "in_the_noise"),
        (102 * MS, MS // 10, "material"),
        (98 * MS, MS // 10, "material"),
        (100 * MS + MS // 2, MS // 10, "detectable"),
        (100 * MS, 2 * MS, "inconclusive"),
    ],
)
def test_the_four_verdicts(b_ns: int, jitter_ns: int, name: str) -> None:
    pairs = recording(100 * MS, b_ns, num=32, jitter_ns=jitter_ns)
    assert compare_pairs(pairs).verdict.name == name
    assert compare_pairs(swapped(pairs)).verdict.name == name


def test_a_reason_names_the_interval_the_threshold_and_the_process() -> None:
    reason = compare_pairs(recording(100 * MS, 102 * MS)).verdict.reason
    assert reason.startswith("in this process, ")
    assert "95 % CI, +2.00 ms to +2.00 ms" in reason
    assert reason.endswith("beyond ±500 us (0.50 % of A's step)")


def test_a_wider_threshold_turns_material_into_noise() -> None:
    pairs = recording(100 * MS, 102 * MS, jitter_ns=MS // 10)
    assert compare_pairs(pairs, threshold_pct=5).verdict.name == "in_the_noise"
    assert compare_pairs(pairs, threshold_pct=0).verdict.name == "material"
    with pytest.raises(UsageFault, match="-1 %"):
        compare_pairs(pairs, threshold_pct=-1)


def test_the_pairs_asked_for_grow_with_the_square_of_the_noise() -> None:
    requested = [
        compare_pairs(recording(100 * MS, 100 * MS, num=40, jitter_ns=jitter)).verdict.pairs_needed
        for jitter in (2 * MS, 4 * MS)
    ]
    assert None not in requested
    assert requested[1] == pytest.approx(4 * requested[0], abs=4)  # type: ignore[operator]


def test_no_finished_pair_is_unreadable() -> None:
    with pytest.raises(UnreadableInput, match="on: no finished pair"):
        compare_pairs(pairs_of([[]], [[]], []))


def test_the_noise_floor_is_the_far_end_of_the_controls_interval() -> None:
    changes = [0, 10, 20, 30, -1000, -1100, -1200, -1400]
    control = pairs_of([5000] * 8, [5000 + change for change in changes], [True] * 4 + [False] * 4, a="off", b="off")
    assert compare_pairs(recording(100 * MS, 102 * MS), control=control).noise_floor_ns == 715
    for nothing in (None, pairs_of([[]], [[]], [], b="off")):
        assert compare_pairs(recording(100 * MS, 102 * MS), control=nothing).noise_floor_ns is None


def test_a_control_that_differs_from_itself_is_a_doubt() -> None:
    same, other = recording(100 * MS, 100 * MS), recording(100 * MS, 103 * MS)
    assert codes(compare_pairs(other, control=same)) == set()
    assert codes(compare_pairs(other, control=other)) == {"control_differs", "below_noise_floor"}


def test_stalls_of_one_arm_move_the_mean_and_are_said() -> None:
    pairs = recording(100 * MS, 100 * MS, num=64, jitter_ns=MS // 10)
    stalled = pairs.second_ns.copy()
    stalled[0, np.flatnonzero(pairs.b_second)[:12]] *= 3
    result = compare_pairs(pairs_of(pairs.first_ns, stalled, pairs.b_second))
    assert result.verdict.name == "in_the_noise"
    assert result.mean_delta_ns > 30 * MS
    assert (result.num_slow_a, result.num_slow_b) == (0, 12)
    assert codes(result) == {"mean_disagrees", "slow_steps_differ"}


def test_ranks_that_disagree_with_the_job_are_named() -> None:
    slow, fast = recording(100 * MS, 103 * MS), recording(50 * MS, 50 * MS)
    ranks = [np.vstack([getattr(slow, half), getattr(fast, half)]) for half in ("first_ns", "second_ns")]
    result = compare_pairs(pairs_of(ranks[0], ranks[1], slow.b_second))
    assert result.rank_delta_ns == (3 * MS, 0)
    (caveat,) = result.caveats
    assert "+3.00 ms" in caveat.text
    assert caveat.text.endswith("1 of 2 ranks disagree: 0 on rank 1")


def carrying(num: int, *, a_after_b_ns: int = 0, seed: int = 0) -> Pairs:
    """Groups of 16 pairs, eight of either order, halves of 100 ms; one of A takes that much longer after one of B."""
    rng = np.random.default_rng(seed)
    b_second = np.concatenate([rng.permutation(np.arange(16) < 8) for _ in range(num // 16)])
    b_runs = np.column_stack([~b_second, b_second]).ravel()
    after_b = np.r_[False, b_runs[:-1]]
    after_b[::32] = b_runs[1::32]  # before a group runs what settles: a pair of its first order
    halves = 100 * MS + rng.integers(-MS // 10, MS // 10, 2 * num) + a_after_b_ns * (after_b & ~b_runs)
    return pairs_of(*halves.reshape(num, 2).T, b_second)


def test_what_is_carried_over_from_one_half_to_the_next_is_said() -> None:
    (caveat,) = compare_pairs(carrying(64, a_after_b_ns=2 * MS)).caveats
    assert caveat.code == "carried_over"
    result = re.search(r"step of A takes \+(\S+) ms after B", caveat.text)
    assert result
    assert float(result[1]) == pytest.approx(2.0, abs=0.2)
    assert "a step of B takes" in compare_pairs(swapped(carrying(64, a_after_b_ns=2 * MS))).caveats[0].text


def test_neither_the_order_nor_a_little_is_carried_over() -> None:
    for seed in range(50):
        quiet = carrying(64, seed=seed)
        assert "carried_over" not in codes(compare_pairs(quiet))  # 1 % of them may; these do not
        second = Pairs(quiet.a, quiet.b, quiet.b_second, quiet.first_ns, quiet.second_ns + 5 * MS)
        assert "carried_over" not in codes(compare_pairs(second))
        assert "carried_over" not in codes(compare_pairs(carrying(64, a_after_b_ns=MS // 4, seed=seed)))


def test_processes_are_compared_without_the_half() -> None:
    result = compare_values(np.array([100, 101, 102, 103]), np.array([200, 210, 220, 240]))
    # k = 1 of 16 differences: from 200 - 103 to 240 - 100
    assert (result.ci95_ns, result.delta_ns, result.num_pairs) == ((97, 140), 114, 0)
    assert result.verdict.name == "material"


def test_three_processes_a_side_are_not_tested() -> None:
    result = compare_values(np.array([100, 101, 102]), np.array([200, 210, 220, 240, 250, 260, 270]))
    assert (result.delta_ns, result.ci95_ns) == (139, None)
    assert result.verdict.pairs_needed == 4
    assert result.verdict.reason.startswith("3 and 7 processes per side ")


def test_profiled_steps_give_an_estimate_and_no_interval() -> None:
    result = compare_values(np.arange(100, 120), np.arange(200, 220), profiled=True)
    assert (result.delta_ns, result.ci95_ns, result.unprofiled) == (100, None, False)
    assert (result.verdict.name, result.verdict.pairs_needed) == ("inconclusive", None)
    assert result.verdict.reason.startswith("20 profiled steps ")
    with pytest.raises(UnreadableInput, match="B: no step"):
        compare_values(np.arange(3), np.arange(0), profiled=True)


@pytest.mark.slow
def test_the_interval_covers_the_truth_under_autocorrelation_and_heavy_tails() -> None:
    rng = np.random.default_rng(7)
    result = [compare_pairs(simulate(rng, delta_ns=MS)).ci95_ns for _ in range(600)]
    covered = np.mean([interval is not None and interval[0] <= MS <= interval[1] for interval in result])
    assert 0.93 <= covered <= 0.975


@pytest.mark.slow
def test_nothing_is_material_where_nothing_differs() -> None:
    rng = np.random.default_rng(11)
    names = [compare_pairs(simulate(rng, delta_ns=0)).verdict.name for _ in range(400)]
    assert "material" not in names
    assert names.count("in_the_noise") > 350
