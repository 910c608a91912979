"""Collectives in which the ranks of simulated jobs wait for each other on one graph."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from builder import Event, build, comms, kernel, launch, op, step, world
from simulator import US, Shape, a_job, run_of
from simulator.meetings import Late, Meetings

from traceq.causes.common_steps import common_steps, job_clocks
from traceq.causes.edges import EdgeKind
from traceq.causes.longest_path import longest_paths
from traceq.model import Trace

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


def rank_of(number: int, *launched: tuple[str, int], last_us: int = 50) -> Trace:
    """Launch collectives and kernels, by (name, us), in a rank of two that exchange something 30 times before."""
    launched = (*(("allgather", 100 * n) for n in range(1, 31)), *launched)
    rows = list[Event]()
    for corr, (name, begin) in enumerate(launched, 1):
        is_kernel, dur = name in ("mm", "add"), last_us if corr == len(launched) else 50
        rows += [op(f"aten::{name}", begin, 10) if is_kernel else comms(name, begin, 10, **{"Group size": 2})]
        kernel_name, stream = (name, 7) if is_kernel else (f"ncclDevKernel_{name}", 20)
        rows += [launch(begin + 2, 4, corr), kernel(kernel_name, begin + 10, dur, corr, stream=stream)]
    return build(step(0, 5000), *rows, **world(number, 2))


def test_ranks_that_moved_a_collective_in_opposite_directions_meet_in_the_others() -> None:
    before, after = (
        (("mm", 3160), ("add", 3180), ("allreduce", 3200)),
        (("allreduce", 3200), ("mm", 3220), ("add", 3240)),
    )
    a, b = ([rank_of(0, *first), rank_of(1, *second)] for first, second in ((before, after), (after, before)))
    common = common_steps(a, b)
    meets = common.graph.edges.kind == EdgeKind.MEET
    assert (len(common.a), int(meets.sum())) == (2, 30 * 2)


def test_parts_of_a_collective_that_end_apart_meet() -> None:
    """Of an all-to-all each rank waits for its own part of the data."""
    ranks = [rank_of(number, ("alltoall", 3200), last_us=us) for number, us in ((0, 50), (1, 350))]
    graph = common_steps(ranks, ranks).graph
    assert int((graph.edges.kind == EdgeKind.MEET).sum()) == 31 * 2
