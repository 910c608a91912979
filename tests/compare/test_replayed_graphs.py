"""CUDA graphs that one side alone replays are told, with the host's time, and whether that gains anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from builder import Event, build, call, kernel, launch, step
from made_sides import H100
from statements import of_code

from traceq.claims.claim import Measure
from traceq.compare.diff import diff_runs
from traceq.model import Run

NUM, US = 4, 100
"""Kernels of a step, each so long: the device is the pace of a step of 400 us."""


def side(*, replays: bool, gap: int = 0, sync: bool = False) -> Run:
    """Four steps whose host takes 200 us for launches, or 50 us for a replay, and then waits where it syncs."""
    events: list[Event] = []
    host, whole = 50 if replays else 200, NUM * (US + gap) + 40 * sync
    for number in range(4):
        begin = whole * number
        events.append(step(begin, whole - 5 if sync else host, number))
        for index in range(NUM):
            corr = 100 * number + 1 + (0 if replays else index)
            if not replays:
                events.append(launch(begin + 5 + 50 * index, 5, corr))
            elif index == 0:
                events.append(call("cudaGraphLaunch", begin + 5, 40, corr))
            events.append(kernel("gemm", begin + 20 + (US + gap) * index, US, corr))
        if sync:
            events.append(call("cudaDeviceSynchronize", begin + host, whole - 10 - host))
    return Run("side", (build(*events, **H100),))


def launched(num: int) -> list[Event]:
    """A step with so many launches."""
    each = [(launch(5 * index, 2, index + 1), kernel("gemm", 50, 9, index + 1)) for index in range(num)]
    return [step(0, 90), *(event for pair in each for event in pair)]


def graphs(a: Run, b: Run) -> list[Mapping[str, Measure]]:
    return of_code("graph_replays", diff_runs(a, b))


def test_a_host_that_needs_less_by_graphs_gains_nothing_where_the_device_is_busy() -> None:
    result = diff_runs(side(replays=False), side(replays=True))
    assert result.answer.code == "same_time"
    (what,) = of_code("graph_replays", result)
    keys = ("replaying_side", "launching_side", "replays_mean", "launches_mean", "other_launches_mean")
    assert [what[key] for key in keys] == ["b", "a", 1, 0, NUM]
    assert int(what["less_host_ns"]) > 0
    assert float(what["busy_pct"]) > 90


def test_the_host_does_not_need_the_time_for_which_it_waits() -> None:
    for first, name in ((False, "b"), (True, "a")):
        (what,) = graphs(side(replays=first, sync=True), side(replays=not first, sync=True))
        assert (what["replaying_side"], what["less_host_ns"]) == (name, 150_000)


def test_what_a_difference_gains_is_not_denied() -> None:
    (what,) = graphs(side(replays=False, gap=60), side(replays=True))
    assert "busy_pct" not in what


def test_the_host_of_another_device_is_not_compared_nor_a_single_graph_among_launches_told() -> None:
    ours, theirs = side(replays=False).traces[0], replace(side(replays=True).traces[0], device="Tesla V100")
    (what,) = graphs(Run("a", (ours,)), Run("b", (theirs,)))
    assert not {"less_host_ns", "more_host_ns"} & what.keys()
    replay = call("cudaGraphLaunch", 60, 5, 99), kernel("gemm", 70, 9, 99)
    assert graphs(Run("a", (build(*launched(9)),)), Run("b", (build(*launched(8), *replay),))) == []


def test_graphs_on_both_sides_or_none_are_no_difference() -> None:
    for replays in (False, True):
        assert graphs(side(replays=replays), side(replays=replays)) == []
