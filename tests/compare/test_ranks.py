"""A diff of several ranks: which one made the step longer, when all take as long as the slowest."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from builder import build, call, kernel, launch, op, world
from simulator import US, run_of
from simulator.meetings import Late, Meetings
from statements import codes, of_code, only

from traceq.compare.diff import diff_runs
from traceq.compare.explain import explain
from traceq.compare.ranks import explained_rank, only_changed_rank, rank_deltas
from traceq.compare.result import CellDelta, Diff, Diffs, RankDelta, Traced
from traceq.compare.statement import state
from traceq.compare.tables import ranks_table, waterfall
from traceq.compare.where_statements import of_ranks
from traceq.facts.ranks.job import ranks_in_memory
from traceq.model import Arm, Manifest, Pairs, Run, Trace
from traceq.renderers.diff_json import diffs_to_json
from traceq.renderers.html.diff import compared

PLAN = [("all_reduce", 1024), ("all_gather", 4096), ("all_reduce", 64)]
DELAY = 4_000 * US
SLACK = 10 * US


def job(delay: int, *, in_kernel: bool = False, compute: int = 100 * US) -> Run:
    """Eight ranks with the same draws of chance whatever the delay.

    Hosts run ahead of a late kernel, not of a late host, which would hide some of its delay.
    """
    late = Late(3, delay, 1, in_kernel)
    return run_of(Meetings(PLAN, num_steps=4, late=late, compute=compute, ahead=in_kernel).job(random.Random(5)))


@pytest.fixture(scope="module")
def slowed() -> Diff:
    return diff_runs(job(0), job(DELAY))


@pytest.mark.slow
@pytest.mark.parametrize("in_kernel", [False, True], ids=["host", "kernel"])
def test_a_rank_that_is_slower_is_named_with_what_it_does(in_kernel: bool) -> None:
    result = diff_runs(job(0, in_kernel=in_kernel), job(DELAY, in_kernel=in_kernel))
    assert result.traced is not None
    assert result.traced.rank == 3
    first, *others = result.causes
    assert (first.kind, first.phase) == ("kernel" if in_kernel else "host", "backward")
    assert "aten::prepare" in first.name
    assert first.delta_ns == pytest.approx(DELAY, rel=0.02)
    assert abs(sum(cause.delta_ns for cause in others)) < 0.01 * DELAY
    assert result.residual_ns == 0
    category = "compute" if in_kernel else "host-bound"
    only_rank = only("only_rank", result)
    assert (only_rank["rank"], only_rank["delta_ns"]) == (3, pytest.approx(DELAY, rel=0.02))
    assert (only_rank["category"], only_rank["phase"]) == (category, "backward")
    assert str(only_rank["waited_in"]).startswith("all_gather")


@pytest.mark.slow
def test_all_ranks_take_longer_and_one_has_more_to_do(slowed: Diff) -> None:
    assert [rank.rank for rank in slowed.ranks] == list(range(8))
    for rank in slowed.ranks:
        assert rank.delta_ns == pytest.approx(DELAY, rel=0.02)
        assert rank.own_delta_ns == pytest.approx(DELAY if rank.rank == 3 else 0, abs=0.01 * DELAY)


@pytest.mark.slow
def test_the_other_way_around_it_is_faster_by_as_much(slowed: Diff) -> None:
    back = diff_runs(job(DELAY), job(0))
    assert [(rank.rank, rank.delta_ns, rank.own_delta_ns) for rank in back.ranks] == [
        (rank.rank, -rank.delta_ns, -rank.own_delta_ns) for rank in slowed.ranks
    ]
    assert [(cause.key, cause.delta_ns) for cause in back.causes] == [
        (cause.key, -cause.delta_ns) for cause in slowed.causes
    ]
    only_rank = only("only_rank", back)
    assert (only_rank["rank"], only_rank["delta_ns"]) == (3, pytest.approx(-DELAY, rel=0.02))


@pytest.mark.slow
def test_where_all_ranks_change_alike_none_is_named() -> None:
    result = diff_runs(job(0), job(0, compute=150 * US))
    assert not of_code("only_rank", result)


@pytest.mark.slow
def test_ranks_in_any_order_give_the_same_diff(slowed: Diff) -> None:
    a, b = job(0), job(DELAY)
    turned = diff_runs(replace(a, traces=a.traces[::-1]), replace(b, traces=(*b.traces[4:], *b.traces[:4])))
    assert (turned.ranks, turned.causes, turned.reasons) == (slowed.ranks, slowed.causes, slowed.reasons)


def test_json_has_every_rank(slowed: Diff) -> None:
    result = json.loads(diffs_to_json(Diffs("a", (slowed,))))["ranks"]
    assert [rank["rank"] for rank in result] == list(range(8))
    for rank in result:
        assert rank["delta_ns"] == rank["b_ns"] - rank["a_ns"]
        assert rank["own_delta_ns"] == rank["own_b_ns"] - rank["own_a_ns"]


def test_the_rank_that_changed_most_stands_first_in_the_table(slowed: Diff) -> None:
    assert ranks_table(slowed).rows[0][0] == 3
    one = diff_runs(replace(job(0), traces=job(0).traces[:1]), replace(job(0), traces=job(0).traces[:1]))
    assert ranks_table(one).rows == ()


@pytest.mark.parametrize("seed", range(8))
def test_whichever_rank_is_late_and_wherever_it_is_named_with_its_delay(seed: int) -> None:
    rng = random.Random(seed)
    late = Late(rng.randrange(4), rng.randrange(100, 5000) * US, rng.randrange(3), rng.random() < 0.5)
    a, b = (
        run_of(Meetings(PLAN, num_ranks=4, num_steps=4, late=one, ahead=late.in_kernel).job(random.Random(seed)))
        for one in (replace(late, ns=0), late)
    )
    result = diff_runs(a, b)
    only_rank = only("only_rank", result)
    assert (only_rank["rank"], int(only_rank["delta_ns"]) > 0) == (late.rank, True)
    assert result.traced is not None
    assert late.ns - SLACK <= result.traced.delta_ns <= late.ns  # other ranks came later before: that much is hidden
    assert result.causes[0].delta_ns == pytest.approx(result.traced.delta_ns, rel=0.0005)
    assert "aten::prepare" in result.causes[0].name


@pytest.mark.parametrize("explained", [0, 3])
def test_a_late_rank_is_no_change_of_a_collective_that_is_issued_in_another_place(explained: int) -> None:
    """Rank 3 takes 400 us less before the second collective of B, which issues all but the first in reverse."""
    plan = [("all_gather", 1000), ("all_reduce", 4000), ("all_reduce", 2000), ("reduce_scatter", 1000)]
    sides = [
        run_of(Meetings(issued, num_ranks=4, late=Late(3, ns, 1, in_kernel=True)).job(random.Random(1))).traces
        for issued, ns in ((plan, 400 * US), ([plan[0], *plan[:0:-1]], 0))
    ]
    (a, b), *peers = sorted(zip(*sides, strict=True), key=lambda rank: rank[0].rank != explained)
    traced, _, causes = explain(a, b, peers)
    assert traced.delta_ns == pytest.approx(-400 * US, abs=SLACK)
    assert max(abs(cause.delta_ns) for cause in causes if cause.kind == "collective") < 40 * US
    (late,) = (cause for cause in causes if cause.kind == "kernel")
    assert (late.name, late.delta_ns) == ("rank 3: gemm", pytest.approx(-400 * US, abs=SLACK))


def test_traces_of_different_ranks_are_named_by_both() -> None:
    """Two ranks of one job, a file each: neither title nor page calls both by A's rank."""
    plan = Meetings(PLAN, num_ranks=2, num_steps=4).job(random.Random(15))
    first, second = (Run(f"rank{trace.rank}", (trace,)) for trace in run_of(plan).traces)
    result = diff_runs(first, second)
    assert result.traced is not None
    assert (result.traced.rank, result.traced.b_rank) == (0, 1)
    assert "of rank 0 and rank 1; profiled)" in waterfall(result).title
    assert "rank 0 and rank 1 of 2" in compared(Diffs("rank0", (result,)))
    same = diff_runs(first, first)
    assert "traced steps of rank 0; profiled)" in waterfall(same).title


@pytest.mark.slow
def test_what_hosts_that_run_ahead_hide_is_no_cause() -> None:
    a, b = (
        run_of(Meetings(PLAN, num_ranks=4, num_steps=4, late=Late(1, ns, 0)).job(random.Random(15)))
        for ns in (0, 195 * US)
    )
    result = diff_runs(a, b)
    assert (result.causes, {rank.delta_ns for rank in result.ranks}) == ((), {0})
    assert not {"only_rank", "slowest_rank"} & set(codes(result.reasons))


@pytest.mark.slow
def test_unprofiled_steps_that_find_nothing_leave_no_rank_to_blame() -> None:
    """A window in which one rank was slow, and pairs that scatter so much that it may be chance."""
    arms = (Arm("off", "", baseline=True), Arm("on", ""))
    manifest = Manifest(1, "r1", "x", "?", {}, arms, (), num_ranks=8, seed=1, status="complete")
    rng = np.random.default_rng(1)
    first, second = (rng.integers(50_000_000, 150_000_000, (8, 32)) for _ in range(2))
    pairs = Pairs("off", "on", np.arange(32) % 2 == 0, first, second)
    off, on = (
        replace(job(delay), arm=name, manifest=manifest, pairs=(pairs,)) for name, delay in (("off", 0), ("on", DELAY))
    )
    result = diff_runs(off, on)
    assert result.comparison is not None
    assert (result.comparison.unprofiled, result.comparison.verdict.name) == (True, "inconclusive")
    assert result.doubt is not None
    assert result.doubt.code != "outside_interval"
    assert not {"only_rank", "slowest_rank"} & set(codes(result.reasons))


# By hand


def traced(number: int) -> Traced:
    return Traced(number, 1000, 1000, 3, 3)


def rank(number: int, own_a: int, own_b: int) -> RankDelta:
    return RankDelta(number, 1000, 1000 + own_b - own_a, own_a, own_b)


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ([(900, 900), (900, 1000), (900, 920)], 1),
        ([(900, 900), (900, 800), (900, 920)], 1),
        ([(900, 900), (900, 1000), (900, 925)], None),
        ([(900, 900), (900, 905), (900, 900)], None),
        ([(900, 1000)], None),
        ([], None),
    ],
    ids=["slower", "faster", "not alone", "too little", "one rank", "none"],
)
def test_a_rank_changed_alone_if_no_other_did_a_quarter_as_much(
    local: list[tuple[int, int]], expected: int | None
) -> None:
    result = only_changed_rank([rank(number, *pair) for number, pair in enumerate(local)])
    assert (result and result.rank) == expected


def test_a_rank_that_waits_less_for_another_in_a_step_that_lasts_as_long_did_not_change_alone() -> None:
    """It was ahead of the slowest rank by its waits, which became its own time."""
    deltas = [RankDelta(0, 1000, 1030, 700, 930), RankDelta(1, 1000, 1030, 960, 990)]
    assert only_changed_rank(deltas) is None
    assert only_changed_rank([RankDelta(0, 1000, 1230, 700, 930), deltas[1]]) is not None


def test_the_rank_with_the_most_own_time_on_both_sides_is_named() -> None:
    deltas = [rank(0, 500, 550), rank(1, 900, 990), rank(2, 510, 570)]
    (slowest,) = of_ranks(traced(1), deltas, (), "")
    assert slowest == state("slowest_rank", rank=1, own_a_ns=900, own_b_ns=990, others_a_ns=505, others_b_ns=560)
    apart = [rank(0, 700, 960), rank(1, 800, 950), rank(2, 510, 570), rank(3, 510, 570)]
    assert codes(of_ranks(traced(1), apart, (), "")) == ["slowest_rank"]
    assert not [*of_ranks(traced(0), [rank(0, 500, 550), rank(1, 495, 549)], (), "")]
    assert not [*of_ranks(traced(1), [rank(0, 500, 500), rank(1, 900, 900)], (), "")]


def test_without_a_collective_to_wait_in_none_is_named() -> None:
    deltas, cells = [rank(0, 500, 500), rank(1, 500, 900)], (CellDelta("forward", "compute", 0, 400),)
    only_rank = only("only_rank", of_ranks(traced(1), deltas, cells, ""))
    assert (only_rank["rank"], only_rank["delta_ns"], only_rank["cell_delta_ns"]) == (1, 400, 400)
    assert "waited_in" not in only_rank


def test_of_traces_of_different_ranks_each_alone_that_of_a_is_explained() -> None:
    a, b = job(0), job(0)
    first, second = replace(a, traces=a.traces[:1]), replace(b, traces=b.traces[1:2])
    assert rank_deltas(ranks_in_memory(first), ranks_in_memory(second)) == ()
    assert explained_rank(first, second, ()) == 0
    assert explained_rank(first, replace(b, traces=b.traces[1:3]), ()) is None


def of_process(rank: int, first_ms: int) -> Trace:
    """A trace of one rank of two, whose device may be used for the first time, and which has a kernel of 1 ms."""
    first = [op("aten::empty", 0, 1000 * first_ms), call("cudaMalloc", 5, 10)] if first_ms else []
    begin = 1000 * first_ms + 10
    work = op("aten::mm", begin, 20), launch(begin + 2, 5, 1), kernel("gemm", begin + 10, 1000, 1)
    return build(*first, *work, **world(rank, 2))


def test_a_cold_start_is_that_of_the_rank_which_is_explained() -> None:
    cold, warm = ([of_process(rank, first_ms) for rank, first_ms in enumerate(each)] for each in ((200, 300), (0, 0)))
    result = diff_runs(Run("a", tuple(cold)), Run("b", tuple(warm)))
    assert result.traced is not None
    assert result.traced.rank == 1
    assert (result.answer.code, result.answer.measures["per"]) == ("other_pace", "in the trace")
    once = only("cold_start", result)
    assert (once["rank"], once["once_a_ns"], once["once_b_ns"]) == (1, pytest.approx(300_000_000, rel=1e-3), 0)
