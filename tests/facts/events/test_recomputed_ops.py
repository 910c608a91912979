"""Ops that a node of backward recomputes are told from its own, and from a backward that is differentiated again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builder import Event, build, frame, op, step

from traceq.compare.diff import diff_runs
from traceq.facts.events.forward_ops import is_recomputed_at, recomputed_ops
from traceq.facts.timeline.main_lines import differentiated_lines, main_lines
from traceq.facts.timeline.steps import main_track
from traceq.kineto.read import read_trace
from traceq.model import Run, Trace


def names(trace: Trace) -> list[str]:
    return [trace.events.strings[name] for name in trace.events.name[recomputed_ops(trace)].tolist()]


def node(start: float, dur: float, number: int) -> Event:
    args = {"Sequence number": number, "Fwd thread id": 1}
    return op("NativeLayerNormBackward0", start, dur, **args)


def numbered(name: str, start: float, dur: float, number: int) -> Event:
    return op(name, start, dur, **{"Sequence number": number, "Fwd thread id": 0})


def test_what_a_node_runs_before_its_own_op_with_numbers_is_recomputed() -> None:
    last = op("aten::native_layer_norm_backward", 80, 10)
    again = [numbered("aten::linear", 10, 40, 7), numbered("aten::addmm", 20, 20, 8), numbered("aten::gelu", 60, 10, 9)]
    assert names(build(node(0, 100, 3), *again, last)) == ["aten::linear", "aten::gelu"]
    assert names(build(node(0, 100, 3), last)) == []
    differentiated = numbered("aten::native_layer_norm_backward", 80, 10, 10)
    assert names(build(node(0, 100, 3), *again, differentiated)) == []
    assert names(build(*again, last)) == []  # in no node


def backward(dur: float, *again: Event) -> Trace:
    rows = [node(100, dur - 100, 3), *again, op("aten::native_layer_norm_backward", dur - 10, 10)]
    return build(step(0, dur), op("aten::linear", 0, 90, **{"Sequence number": 3, "Fwd thread id": 0}), *rows)


def test_a_diff_names_the_ops_that_one_side_recomputes() -> None:
    a, b = backward(150), backward(250, numbered("aten::linear", 105, 100, 7))
    diff = diff_runs(Run("a", (a,)), Run("b", (b,)))
    assert (diff.answer.code, diff.answer.measures["delta_ns"]) == ("observed", 100_000)
    assert [(cause.name, cause.delta_ns) for cause in diff.causes] == [("aten::linear (recomputed)", 100_000)]


def test_what_a_node_recomputes_is_not_at_the_line_that_the_node_differentiates() -> None:
    """Both are in the backward pass that line 3 asks for; the node's own op differentiates line 7."""
    rows = [step(0, 250), frame("train.py(3): main", 0, 250), frame("train.py(7): forward", 0, 95)]
    rows += [numbered("aten::layer_norm", 0, 90, 3), node(100, 150, 3), numbered("aten::linear", 105, 100, 7)]
    trace = build(*rows, op("aten::native_layer_norm_backward", 240, 10))
    in_forward, in_again, in_node = 10, 150, 245
    instants = np.array([in_forward, in_again, in_node]) * 1000 + int(trace.events.ts.min())
    track = np.full(3, main_track(trace))
    assert is_recomputed_at(trace, track, instants).tolist() == [False, True, False]
    lines = differentiated_lines(trace, track, instants).tolist()
    assert [main_lines(trace).texts[line] for line in lines] == ["", "", "train.py:7 forward"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("runs", "expected"),
    [("checkpoint", {"aten::linear", "aten::gelu"}), ("plain", set()), ("differentiated", set())],
)
def test_in_traces_of_torch_only_a_checkpoint_is_recomputed(runs: str, expected: set[str], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="records a trace")
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.checkpoint import checkpoint

    block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    batch = torch.randn(4, 8, requires_grad=True)
    forward: Callable[..., object] = block
    if runs == "checkpoint":
        forward = lambda x: checkpoint(block, x, use_reentrant=False)  # noqa: E731
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        loss = forward(batch).square().mean()  # type: ignore[attr-defined]
        if runs == "differentiated":
            (gradient,) = torch.autograd.grad(loss, batch, create_graph=True)
            loss = loss + gradient.square().sum()
        loss.backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    assert set(names(read_trace(tmp_path / "trace.json"))) >= expected
    assert bool(names(read_trace(tmp_path / "trace.json"))) == bool(expected)
