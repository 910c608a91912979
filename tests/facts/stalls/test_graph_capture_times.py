"""What of the host's time a CUDA graph takes once, and what a finding says about it. Times in us."""

from __future__ import annotations

import pytest
from builder import Event, build, call, kernel, launch, op, step

from traceq.analysis.registry import analyze
from traceq.facts.stalls.graph_capture_times import graph_capture_times
from traceq.model import Run, Trace


def compiled(*around: Event, begin: int = 200) -> Trace:
    """An op, a capture of 50 that is replayed 20 after it, and an op that waits for nothing; `around` is added."""
    return build(
        step(0, 1000),
        op("aten::copy_", 0, 5),
        launch(1, 2, 1),
        kernel("copy", 4, 10, 1),
        call("cudaStreamBeginCapture", begin, 2),
        call("cudaStreamEndCapture", begin + 50, 2),
        call("cudaGraphLaunch", begin + 70, 5, 2),
        kernel("graph", begin + 80, 100, 2),
        op("aten::add", 900, 10),
        launch(901, 2, 3),
        kernel("add", 905, 90, 3),
        *around,
    )


def us(trace: Trace) -> list[list[float]]:
    return (graph_capture_times(trace) / 1000).tolist()


def filling(num: int) -> list[Event]:
    return [row for n in range(num) for row in (launch(150 + 10 * n, 2, 8 + n), kernel("fill", 155 + 10 * n, 2, 8 + n))]


@pytest.mark.parametrize(("num_filled", "since"), [(0, 50), (2, 50), (3, 152)])
def test_a_graph_takes_the_time_between_launches_in_the_op_that_captures_it(num_filled: int, since: int) -> None:
    """Two launches before it fill the seed and the offset of random numbers; a third one is work of the op."""
    region = op("Torch-Compiled Region", 50, 400), op("aten::mm", 190, 70)
    assert us(compiled(*region, *filling(num_filled))) == [[since, 270]]


def test_the_op_bounds_what_a_graph_takes() -> None:
    assert us(compiled(op("Torch-Compiled Region", 120, 140))) == [[120, 260]]


@pytest.mark.parametrize("around", [[], [op("aten::mm", 50, 400, tid=3)]], ids=["none", "another thread's"])
def test_without_an_op_of_its_thread_only_the_capture_is_known(around: list[Event]) -> None:
    """The host may do anything before it, such as wait for requests."""
    assert us(compiled(*around)) == [[200, 250]]
    assert us(build(step(0, 10), op("aten::mm", 1, 5))) == []


def test_what_is_captured_once_is_not_in_what_a_faster_host_saves() -> None:
    """By replay a host that takes no time saves 794, of which 220 are in the op from its begin to the replay."""
    run = Run("", (compiled(op("Torch-Compiled Region", 50, 300)),))
    assert analyze(run, "replay").tables[0].to_dicts()[-1]["saved_ns"] == 794_000
    (text,) = (each.text for each in analyze(run, "partition").findings if each.code == "host_bound")
    assert "; for 220 us of it the host prepares and captures a CUDA graph, once: trace later steps; beyond" in text
    assert "; beyond that a host that takes no time saves 574 us (replay" in text
