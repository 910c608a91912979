"""Edges between streams and to waits of the host: what one side shows, the other may disprove."""

from __future__ import annotations

import numpy as np
from builder import build, call, kernel, launch, memcpy, op

from traceq.causes.common_steps import CommonSteps, common_steps
from traceq.causes.edges import IN_A, IN_BOTH, EdgeKind
from traceq.model import Trace


def edges_of(common: CommonSteps, kind: EdgeKind) -> list[tuple[int, int, int, int]]:
    """(ns on A, ns on B, side bits, whether it binds on either) of the edges of a kind."""
    index = np.flatnonzero(common.graph.edges.kind == kind)
    weights = common.weights
    binds = (weights.binds_a | weights.binds_b)[index]
    columns = (weights.a[index], weights.b[index], common.graph.edges.sides[index], binds)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def two_streams(dur: float, begin: float) -> Trace:
    """A kernel of `dur` on one stream, from 10 on, and one that begins at `begin` on the other."""
    launched = [call("cudaStreamWaitEvent", 0, 1), launch(2, 2, 1), launch(5, 2, 2), op("aten::mm", 1, 8)]
    return build(*launched, kernel("long", 10, dur, 1), kernel("other", begin, 30, 2, stream=20))


def test_work_that_begins_when_that_of_another_stream_ends_waits_for_it() -> None:
    a, b = two_streams(500, 511), two_streams(800, 812)
    ((*ns, sides, binds),) = edges_of(common_steps([a], [b]), EdgeKind.AWAIT)
    assert (sorted(ns), sides, binds) == ([1000, 2000], IN_BOTH, True)


def test_a_wait_by_coincidence_that_the_other_side_disproves_is_none() -> None:
    """On one side `other` begins 1 after the end of `long`, on the other 300 before it."""
    a, b = two_streams(500, 511), two_streams(800, 511)
    assert edges_of(common_steps([a], [a]), EdgeKind.AWAIT) != []
    assert edges_of(common_steps([a], [b]), EdgeKind.AWAIT) == []
    assert edges_of(common_steps([b], [a]), EdgeKind.AWAIT) == []


def upload(begin: float, dur: float) -> Trace:
    """A pageable copy whose call lasts `dur` from 20 on, and which runs from `begin` to 100 later."""
    copy = [call("cudaMemcpyAsync", 20, dur, 2), memcpy("HtoD (Pageable -> Device)", begin, 100, 2)]
    rows = [op("aten::copy_", 15, dur + 10), *copy, launch(dur + 40, 2, 3), kernel("add", begin + dur + 150, 5, 3)]
    return build(launch(2, 2, 1), kernel("gemm", 10, begin - 15, 1), *rows)


def hold_edges(a: Trace, b: Trace) -> set[tuple[int, int, int, int]]:
    common = common_steps([a], [b])
    return set(edges_of(common, EdgeKind.SYNC)) | set(edges_of(common_steps([b], [a]), EdgeKind.SYNC))


def test_a_copy_whose_call_returns_before_it_runs_is_not_waited_for() -> None:
    """Both calls are over long before their copies, of which one ends 300 later than the other."""
    result = hold_edges(upload(200, 10), upload(500, 10))
    assert len(result) == 1
    ((a_ns, b_ns, _, binds),) = result
    assert (a_ns == b_ns, binds) == (True, False)


def test_a_copy_that_one_side_waits_for_is_waited_for_on_that_side() -> None:
    """The call of 285 is over 5 after its copy; the other returned 10 before its own, which it did not wait for."""
    result = edges_of(common_steps([upload(200, 285)], [upload(200, 170)]), EdgeKind.SYNC)
    ((_, _, _, binds),) = result
    assert binds


def full_queue(length: int = 950, blocked: int = 40, every_fourth: str = "gemm") -> Trace:
    """Kernels of 100 each; a launch returns 8 after the one that was launched `length` before it has ended.

    The host is that far ahead when 14 kernels have ended.
    """
    rows, begin = [], 0.0
    for number in range(length + 14 + blocked):
        start = 5 + 100 * number
        over = max(begin + 1, start - 100 * (length - 1) + 8)
        name = "gemm" if number % 4 else every_fourth
        rows += [launch(begin, over - begin, number + 1), kernel(name, start, 100, number + 1)]
        begin = over + 0.5
    return build(*rows)


def test_a_launch_into_a_full_queue_waits_for_the_work_that_left_it() -> None:
    trace = full_queue()
    result = edges_of(common_steps([trace], [trace]), EdgeKind.QUEUE)
    assert [edge for edge in result if edge[3]][1:] == [(8000, 8000, IN_BOTH, True)] * 39


def test_a_full_queue_also_holds_work_that_only_one_side_runs() -> None:
    """The other side, without every fourth kernel, waits for its host: its queue is never full."""
    others = [row for n in range(750) for row in (launch(200 * n, 2, n + 1), kernel("gemm", 200 * n + 5, 100, n + 1))]
    full, empty = full_queue(every_fourth="extra"), build(*others)
    expected = [(8000, 8000, IN_A, True)] * 40
    assert [edge for edge in edges_of(common_steps([full], [empty]), EdgeKind.QUEUE) if edge[3]] == expected
    assert [edge for edge in edges_of(common_steps([empty], [full]), EdgeKind.QUEUE) if edge[3]] == expected
