"""Rows of torch.compile at work, which look like ops, modules and a backward pass of the step."""

from __future__ import annotations

import pytest
from builder import AUTOGRAD, Event, annotation, build, frame, launch, op, step

from traceq.model import Category, Trace

ENGINE = "autograd::engine::evaluate_function: MmBackward0"


def compiling(trace: Trace) -> list[str]:
    return [trace.events.text(row) for row in trace.events.rows(Category.COMPILING).tolist()]


@pytest.mark.parametrize(
    "around",
    [
        op("dynamo", 10, 50),
        op("_compile.compile_inner (dynamo_timed)", 10, 50),
        annotation("_compile (dynamo_timed)", 10, 50),  # torch 2.0
        annotation("entire_frame_compile", 10, 50),
    ],
)
def test_all_that_a_thread_does_while_it_compiles_is_compiling(around: Event) -> None:
    inside = op("aten::mm", 12, 5), op(ENGINE, 20, 5), annotation("dynamo_data: compile_id=0/1", 30, 1)
    trace = build(step(0, 100), around, *inside, frame("torch/_dynamo/guards.py(7): check", 40, 5))
    names = [around["name"], "aten::mm", ENGINE, "dynamo_data: compile_id=0/1", "torch/_dynamo/guards.py(7): check"]
    assert compiling(trace) == names


def test_what_is_around_or_beside_it_on_another_thread_or_a_call_of_the_device_is_not() -> None:
    compiles = op("backward._backward_impl (dynamo_timed)", 10, 50, tid=AUTOGRAD)
    around = op(ENGINE, 10, 60, tid=AUTOGRAD)  # begins with it
    trace = build(step(0, 100), around, compiles, op("aten::mm", 20, 5), launch(30, 5, 1, tid=AUTOGRAD))
    assert compiling(trace) == [compiles["name"]]


def test_a_program_that_runs_compiled_code_does_not_compile() -> None:
    assert not compiling(
        build(step(0, 100), op("TorchDynamo Cache Lookup", 1, 2), op("Torch-Compiled Region: 0/3", 4, 9))
    )
