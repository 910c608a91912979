"""Stacks of the host: every nanosecond of the counted steps is in one of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builder import AUTOGRAD, annotation, build, call, frame, op, step
from catalogue import FILES

import traceq
from traceq.facts.timeline.host_stacks import host_pieces, host_stacks
from traceq.facts.timeline.steps import steps
from traceq.model import Trace


def times(trace: Trace) -> dict[str, int]:
    """Us of each stack, its frames joined."""
    host = host_stacks(trace)
    return {
        " > ".join(name for _, name in stack): ns // 1000
        for stack, ns in zip(host.stacks, host.ns.tolist(), strict=True)
    }


def test_a_stack_is_phase_annotation_modules_line_and_ops() -> None:
    trace = build(
        step(0, 100),
        annotation("forward", 0, 60),
        annotation("backward", 60, 40),
        annotation("attention", 10, 30),
        frame("model.py(7): forward", 10, 30),
        frame("nn.Module: Net_0", 12, 26),
        frame("nn.Module: Linear_0", 14, 10),
        op("aten::linear", 15, 8),
        op("aten::addmm", 16, 5),
        call("cudaLaunchKernel", 17, 2),
    )
    linear = "forward > attention > Net_0 > Linear_0 > model.py:7 forward"
    assert times(trace) == {
        "forward": 30,
        "backward": 40,
        "forward > attention > model.py:7 forward": 4,
        "forward > attention > Net_0 > model.py:7 forward": 16,
        linear: 2,
        f"{linear} > aten::linear": 3,
        f"{linear} > aten::linear > aten::addmm": 3,
        f"{linear} > aten::linear > aten::addmm > cudaLaunchKernel": 2,
    }


def test_while_the_main_thread_waits_the_stack_is_that_of_backward() -> None:
    trace = build(
        step(0, 100),
        annotation("forward", 0, 50),
        annotation("backward", 50, 50),
        op("aten::mm", 0, 20, **{"Sequence number": 1, "Fwd thread id": 0}),
        op("MmBackward0", 60, 30, tid=AUTOGRAD, **{"Sequence number": 1, "Fwd thread id": 1}),
    )
    assert times(trace) == {
        "forward > aten::mm": 20,
        "forward": 30,
        "backward": 20,
        "backward > MmBackward0": 30,
    }


def test_rows_deeper_than_a_stack_holds_count_to_the_last_one() -> None:
    trace = build(step(0, 100), *(op(f"op{depth}", depth, 100 - 2 * depth) for depth in range(30)))
    stacks = host_stacks(trace)
    deepest = max(stacks.stacks, key=len)
    assert deepest[-1] == ("op", "op23")
    assert int(stacks.ns.sum()) == 100_000


@pytest.mark.parametrize("path", FILES)
def test_stacks_add_up_to_the_counted_steps(path: Path) -> None:
    trace = traceq.read(path).traces[0]
    counted = steps(trace).host[steps(trace).counted]
    assert int(host_stacks(trace).ns.sum()) == int((counted[:, 1] - counted[:, 0]).sum())


@pytest.mark.parametrize("path", FILES)
def test_pieces_cover_their_window_without_gaps(path: Path) -> None:
    trace = traceq.read(path).traces[0]
    window = steps(trace).window[:1]
    pieces = host_pieces(trace, window)
    assert pieces.parts[0, 0] == window[0, 0]
    assert pieces.parts[-1, 1] == window[0, 1]
    assert np.array_equal(pieces.parts[1:, 0], pieces.parts[:-1, 1])
