"""Host time of both sides by owner: all of it, and split where the other side has an anchor in between."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from builder import Event, build, call, kernel, launch, op
from simulator import a_job, run_of

from traceq.causes.anchors import AnchorKind
from traceq.causes.host_line import host_lines, host_pieces
from traceq.causes.rank_graph import RankGraph, rank_graph
from traceq.model import Trace


def graph_of(a: Trace, b: Trace) -> RankGraph:
    return rank_graph(*host_lines(a, b, 0))


def shares_of(a: list[Event], b: list[Event]) -> dict[tuple[int, str], tuple[int, int]]:
    """(us on A, us on B) by place and owner, of what has any."""
    shares = graph_of(build(*a), build(*b)).host
    columns = (shares.edge.tolist(), shares.owner.tolist(), shares.a_ns.tolist(), shares.b_ns.tolist())
    return {
        (place, shares.owners[owner].name): (a_ns // 1000, b_ns // 1000)
        for place, owner, a_ns, b_ns in zip(*columns, strict=True)
    }


def run(dur: float, *launched: float) -> list[Event]:
    """An op, launches in it, and one after it."""
    rows = [op("aten::out", 0, dur), op("aten::after", dur, 50)]
    for number, begin in enumerate((*launched, dur + 10), 1):
        rows += [launch(begin, 5, number), kernel("gemm", begin + 20, 5, number)]
    return rows


def test_host_time_is_that_between_anchors() -> None:
    """Places are the start, the launch in the op, that after it, and the end."""
    assert shares_of(run(100, 40), run(160, 60)) == {
        (1, "aten::out"): (40, 60),
        (2, "aten::out"): (60, 100),
        (2, "aten::after"): (10, 10),
        (3, "aten::after"): (40, 40),
    }


def test_a_segment_that_the_other_side_interrupts_is_split_in_proportion() -> None:
    """B launches after 60 of 240: a quarter of A's 100 is before that."""
    assert shares_of(run(100), run(240, 60)) == {
        (1, "aten::out"): (25, 60),
        (2, "aten::out"): (75, 180),
        (2, "aten::after"): (10, 10),
        (3, "aten::after"): (40, 40),
    }


def test_what_the_other_side_does_not_do_stays_together_on_the_largest_part() -> None:
    a = [op("aten::only", 100, 30), *({**row, "ts": row["ts"] + 30} if row["ts"] >= 100 else row for row in run(100))]
    assert shares_of(a, run(240, 60)) == {
        (1, "aten::out"): (25, 60),
        (2, "aten::out"): (75, 180),
        (2, "aten::only"): (30, 0),
        (2, "aten::after"): (10, 10),
        (3, "aten::after"): (40, 40),
    }


def test_a_hold_gets_no_part_of_a_segment_that_it_interrupts() -> None:
    """The synchronize of B, from 60 to 200, is a hold: A's 100 are split by the 60 before and the 40 after it."""
    b = [*run(240), call("cudaDeviceSynchronize", 60, 140), kernel("before", 10, 180)]
    shares = graph_of(build(*run(100), kernel("before", 10, 180)), build(*b))
    is_hold = np.flatnonzero(shares.kind == AnchorKind.HOLD_END)
    assert len(is_hold) == 1
    on_hold = shares.host.edge == is_hold[0]
    assert (shares.host.a_ns[on_hold] == 0).all()
    assert shares.host.a_ns[~on_hold].tolist()[:2] == [60_000, 40_000]


@pytest.mark.parametrize("seed", range(15))
def test_shares_are_all_of_the_time_of_each_owner_on_either_side(seed: int) -> None:
    a, b = (run_of(a_job(seed, num_steps=num)).traces[0] for num in (2, 3))
    graph = graph_of(a, b)
    for line, ns, time_ns in ((graph.a, graph.host.a_ns, graph.time_a), (graph.b, graph.host.b_ns, graph.time_b)):
        assert (ns >= 0).all()
        assert ns.sum() == line.time_ns[-1] - line.time_ns[0]
        result, expected = Counter[object](), Counter[object]()
        for owner, part in zip(graph.host.owner.tolist(), ns.tolist(), strict=True):
            result[graph.host.owners[owner]] += part
        pieces = host_pieces(line)
        for owner, part in zip(pieces.owner.tolist(), pieces.ns.tolist(), strict=True):
            expected[pieces.owners[owner]] += part
        assert +result == +expected
        assert (np.diff(time_ns[graph.host_node]) >= 0).all()


@pytest.mark.parametrize("seed", range(15))
def test_a_side_passes_its_anchors_when_it_did(seed: int) -> None:
    a, b = (run_of(a_job(seed, num_steps=num)).traces[0] for num in (2, 3))
    graph = graph_of(a, b)
    for line, places, time_ns in ((graph.a, graph.place_a, graph.time_a), (graph.b, graph.place_b, graph.time_b)):
        assert time_ns[graph.host_node[places]].tolist() == (line.time_ns - line.time_ns[0]).tolist()
