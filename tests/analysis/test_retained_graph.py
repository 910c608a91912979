"""Backward ops of a graph that several steps run."""

from __future__ import annotations

import pytest
from builder import Event, build, kernel, launch, op, step

from traceq.analysis.registry import analyze
from traceq.model import Run

ENGINE = "autograd::engine::evaluate_function: "


def loop(*, is_retained: bool, old_us: int = 300, num_steps: int = 3, gpu_us: int = 0) -> Run:
    """Steps of 1 ms: a forward op with its backward, and two nodes whose forward ran before all of them."""
    events: list[Event] = []
    for number in range(num_steps):
        start, new = 1000 * number, {"Sequence number": 10 + number}
        olds = [
            {"Sequence number": (old if is_retained else old + 2 * number + 20), "Fwd thread id": 1} for old in (1, 2)
        ]
        events += [
            step(start, 1000, number),
            op("aten::mul", start, 100, **new),
            op(f"{ENGINE}MulBackward0", start + 200, 100, **new, **{"Fwd thread id": 1}),
            op(f"{ENGINE}PowBackward0", start + 300, old_us, **olds[0]),
            op("PowBackward0", start + 300, old_us, **olds[0]),
            op(f"{ENGINE}SubBackward0", start + 300 + old_us, 10, **olds[1]),
        ]
        if gpu_us:
            events += [launch(start + 10, 1, 2 * number + 1), kernel("mul", start + 20, 5, 2 * number + 1)]
            events += [launch(start + 310, 1, 2 * number + 2), kernel("pow", start + 320, gpu_us, 2 * number + 2)]
    return Run("run", (build(*events),))


def codes(run: Run) -> list[str]:
    return [finding.code for finding in analyze(run, "host").findings]


def test_nodes_that_run_in_several_steps_are_a_retained_graph() -> None:
    (finding,) = analyze(loop(is_retained=True), "host").findings
    assert finding.severity == "high"
    assert finding.text == (
        "retained graph: the backward pass runs 2 ops per step, 310 us (31.0 %), that it also runs in other steps, "
        "most of that PowBackward0, SubBackward0: retain_graph=True keeps the graph of earlier code, such as a set-up "
        "or another step; compute it under torch.no_grad(), or detach its result (in these 3 traced steps)"
    )


@pytest.mark.parametrize(
    "run",
    [
        loop(is_retained=False),
        loop(is_retained=True, old_us=20),
        loop(is_retained=True, num_steps=1),
        loop(is_retained=True, gpu_us=30),
        loop(is_retained=False, gpu_us=600),
    ],
)
def test_nodes_of_one_step_little_time_or_one_step_are_none(run: Run) -> None:
    assert "retained_graph" not in codes(run)


def test_on_a_device_the_time_is_that_of_the_kernels() -> None:
    (finding,) = (each for each in analyze(loop(is_retained=True, gpu_us=600), "host").findings if "graph" in each.code)
    assert "2 ops per step, 600 us of the device (61.6 %), that it also runs in other steps" in finding.text
