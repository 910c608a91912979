"""What happens in few steps: out of the typical step, told as rate times size, charged to the arm that brings it on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_pairs import MS, recording
from numpy.typing import NDArray

from traceq.model import EventKind, PairedEvents, Pairs
from traceq.stats import Comparison, compare_pairs

PAUSE = 400 * MS
NUM = 64


def with_pauses(
    pairs: Pairs,
    has_pause: NDArray[np.bool_],
    *,
    is_shared: bool = True,
    brought: tuple[int, int] = (10, 10),
    cost: float = 1.0,
) -> Pairs:
    """The pairs with a pause in these halves, bool[P, 2]; `brought` per step of A and of B."""
    is_b = np.column_stack([~pairs.b_second, pairs.b_second])
    pauses = (PAUSE * has_pause)[None, :, :, None]
    events = PairedEvents(
        kinds=(EventKind("pause", is_shared),),
        num=has_pause[None, :, :, None].astype(np.int64),
        ns=pauses,
        counted_ns=pauses,
        num_steps=np.full((1, *is_b.shape), 2),
        brought=2 * np.where(is_b, brought[1], brought[0])[None],
    )
    longer = (cost * pauses[..., 0]).astype(np.int64)
    return replace(
        pairs, first_ns=pairs.first_ns + longer[..., 0], second_ns=pairs.second_ns + longer[..., 1], events=events
    )


def of_b(pairs: Pairs, every: int) -> NDArray[np.bool_]:
    """One of `every` halves of B."""
    is_b = np.column_stack([~pairs.b_second, pairs.b_second])
    chosen: NDArray[np.bool_] = is_b & (np.arange(len(is_b)) % every == 0)[:, None]
    return chosen


QUIET = recording(20 * MS, 20 * MS, num=NUM, jitter_ns=10_000)


def ends(comparison: Comparison) -> tuple[int, int]:
    assert comparison.ci95_ns
    return comparison.ci95_ns


def test_pauses_that_both_arms_bring_on_are_no_difference_wherever_they_fall() -> None:
    result = compare_pairs(with_pauses(QUIET, of_b(QUIET, 4)))
    assert (result.verdict.name, result.typical) == ("in_the_noise", None)
    assert (result.delta_ns, result.a_ns) == pytest.approx((0, 20 * MS), abs=1_000)
    (row,) = result.rare_events
    assert (row.num, row.delta_ns) == (NUM // 4, 0)
    assert row.size_ns == pytest.approx(PAUSE, rel=0.001)
    assert row.rate_a == row.rate_b == NUM / 4 / (4 * NUM)


def test_an_arm_that_brings_on_more_pauses_pays_for_them_also_where_they_fell_into_the_other() -> None:
    """Of 16 pauses in 256 steps, all in A, B brings on three quarters."""
    result = compare_pairs(with_pauses(QUIET, ~of_b(QUIET, 1) & of_b(QUIET, 4)[:, ::-1], brought=(10, 30)))
    (row,) = result.rare_events
    assert (row.rate_a, row.rate_b) == pytest.approx((4 / 128, 12 / 128))
    assert row.delta_ns == pytest.approx(8 / 128 * PAUSE, rel=0.001)
    assert result.verdict.name == "material"
    assert result.delta_ns == pytest.approx(8 / 128 * PAUSE, rel=0.01)
    assert ends(result)[0] < 8 / 128 * PAUSE < ends(result)[1]
    assert result.typical is not None
    assert abs(result.typical.delta) < 0.1 * MS


def test_explicit_pauses_belong_to_the_arm_of_their_step() -> None:
    result = compare_pairs(with_pauses(QUIET, of_b(QUIET, 4), is_shared=False))
    (row,) = result.rare_events
    assert (row.rate_a, row.rate_b) == (0, 16 / 128)
    assert (result.verdict.name, row.cost_a_ns) == ("material", 0)
    assert row.cost_b_ns == pytest.approx(PAUSE / 8, rel=0.001)


def test_two_pauses_of_one_arm_are_chance() -> None:
    result = compare_pairs(with_pauses(QUIET, of_b(QUIET, NUM // 2), is_shared=False))
    (row,) = result.rare_events
    assert row.ci95_ns[0] < 0 < row.delta_ns < row.ci95_ns[1]
    assert (result.verdict.name, result.typical) == ("in_the_noise", None)


def test_what_happens_in_each_step_is_a_part_of_the_typical_one() -> None:
    result = compare_pairs(with_pauses(QUIET, of_b(QUIET, 1), is_shared=False))
    assert (result.rare_events, result.typical) == ((), None)
    assert result.delta_ns == pytest.approx(PAUSE, rel=0.001)


def test_a_pause_that_a_device_does_not_notice_costs_nothing() -> None:
    pairs = with_pauses(QUIET, of_b(QUIET, 4), is_shared=False, cost=0.0)
    result = compare_pairs(pairs)
    assert result.verdict.name == "in_the_noise"
    assert [row.delta_ns for row in result.rare_events] == pytest.approx([0], abs=0.5 * MS)


def test_another_rank_that_waits_is_longer_by_the_pause_too() -> None:
    paused = with_pauses(QUIET, of_b(QUIET, 4))
    assert paused.events is not None
    twice = {name: np.repeat(getattr(paused.events, name), 2, axis=0) for name in ("num_steps", "brought")}
    first_rank = np.array([1, 0])[:, None, None, None]  # it alone pauses
    events = PairedEvents(
        kinds=paused.events.kinds,
        num=first_rank * paused.events.num,
        ns=first_rank * paused.events.ns,
        counted_ns=first_rank * paused.events.counted_ns,
        **twice,
    )
    ranks = replace(
        paused,
        first_ns=np.repeat(paused.first_ns, 2, axis=0),
        second_ns=np.repeat(paused.second_ns, 2, axis=0),
        events=events,
    )
    assert compare_pairs(ranks).delta_ns == compare_pairs(paused).delta_ns


@given(every=st.integers(3, 16), is_shared=st.booleans(), brought=st.tuples(st.integers(0, 30), st.integers(0, 30)))
def test_exchanging_the_arms_inverts_the_difference(every: int, is_shared: bool, brought: tuple[int, int]) -> None:
    pairs = with_pauses(QUIET, of_b(QUIET, every), is_shared=is_shared, brought=brought)
    result, inverse = compare_pairs(pairs), compare_pairs(replace(pairs, a="on", b="off", b_second=~pairs.b_second))
    assert inverse.delta_ns == pytest.approx(-result.delta_ns, abs=2)
    assert ends(inverse) == pytest.approx(tuple(-end for end in reversed(ends(result))), rel=0.001, abs=5_000)
    assert [row.delta_ns for row in inverse.rare_events] == [-row.delta_ns for row in result.rare_events]


def test_pauses_that_differ_by_less_than_the_threshold_are_no_second_answer() -> None:
    pairs = with_pauses(QUIET, of_b(QUIET, 4), brought=(1_000, 1_001))
    assert pairs.events is not None
    result = compare_pairs(pairs)
    (row,) = result.rare_events
    assert 0 < row.ci95_ns[0] <= row.ci95_ns[1] < 0.005 * result.a_ns
    assert result.typical is None
