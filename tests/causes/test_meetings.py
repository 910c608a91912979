"""Collectives in which the ranks of simulated jobs wait for each other on one graph."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from simulator import US, Shape, a_job, run_of
from simulator.meetings import Late, Meetings

from traceq.causes.common_steps import common_steps, job_clocks
from traceq.causes.edges import EdgeKind
from traceq.causes.longest_path import longest_paths

PLAN = [("all_gather", 1000), ("all_reduce", 4000), ("all_reduce", 2000), ("reduce_scatter", 1000)]
JOB = Meetings(PLAN, num_ranks=4, late=Late(3, 0))


def traces_of(meetings: Meetings, seed: int = 1) -> list:
    return list(run_of(meetings.job(random.Random(seed))).traces)


@pytest.mark.parametrize("explained", range(4))
@pytest.mark.parametrize("offsets", [(), (0, 7_000_000, -3_000_000, 40_000)])
def test_all_ranks_meet_in_every_collective_whatever_their_clocks_say(explained: int, offsets: tuple[int, ...]) -> None:
    """Three steps of four collectives, replayed to the nanosecond on both sides."""
    a, b = traces_of(JOB), traces_of(replace(JOB, late=Late(3, 400 * US, in_kernel=True), offsets=offsets), 2)
    common = common_steps(a, b, explained)
    graph = common.graph
    assert len(common.a) == len(common.b) == 4
    meets = graph.edges.kind == EdgeKind.MEET
    assert np.unique(graph.edges.target[meets], return_counts=True)[1].tolist() == [4] * 12
    assert (graph.edges.source < graph.edges.target).all()
    for weight, time in ((common.weights.a, graph.time_a), (common.weights.b, graph.time_b)):
        replayed, _ = longest_paths(graph.first_edge, graph.edges.source, weight)
        assert np.flatnonzero(replayed != time).tolist() == []


def test_a_rank_that_waits_is_as_long_in_its_collective_as_the_last_one_is_late() -> None:
    """The longest path of rank 0 goes over the kernel of rank 3."""
    a, b = traces_of(JOB), traces_of(replace(JOB, late=Late(3, 400 * US, in_kernel=True)))
    common = common_steps(a, b, 0)
    change = common.share * (common.weights.b - common.weights.a)
    by_rank = np.bincount(common.graph.rank, weights=change, minlength=4)
    begin, end = common.graph.windows.T
    delta_ns = sum(
        sign * (time[end] - time[begin]).sum() for sign, time in ((1, common.graph.time_b), (-1, common.graph.time_a))
    )
    assert by_rank.sum() == pytest.approx(delta_ns, abs=1e-3)
    assert by_rank[3] == pytest.approx(delta_ns, rel=0.02)
    assert delta_ns > 700 * US


def test_ranks_that_never_meet_are_explained_each_by_itself() -> None:
    """Without a collective the clocks of two ranks cannot be compared."""
    a, b = (list(run_of(a_job(seed, num_ranks=3, shape=Shape(collectives=False))).traces) for seed in (1, 2))
    assert job_clocks(a, b) is None
    common = common_steps(a, b, 2)
    assert [line.trace.rank for line in (*common.a, *common.b)] == [2, 2]


def test_collectives_in_another_order_on_a_rank_are_not_taken_for_a_circle() -> None:
    """Rank 1 gathers and reduces the other way round in the second step of B, or the other side's ranks do."""
    wrong = {(1, 1): [PLAN[1], PLAN[0], *PLAN[2:]]}
    a, b = traces_of(JOB), traces_of(replace(JOB, wrong=wrong, late=None))
    for sides in ((a, b), (b, a), (b, b)):
        common = common_steps(*sides, 0)
        replayed, _ = longest_paths(common.graph.first_edge, common.graph.edges.source, common.weights.a)
        assert np.flatnonzero(replayed != common.graph.time_a).tolist() == []
