"""Where the time goes by line of Python, and the line of what is in none of a step's phases."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from builder import Event, annotation, build, call, frame, kernel, launch, op, step, table

from traceq.analysis.registry import analyze
from traceq.claims.claim import Basis, Claim
from traceq.model import Arm, Manifest, Run, SourceLines
from traceq.runs.step_log import StepLine, timings_of

MS = 1_000_000
AUTOGRAD = 9


def by_line(*events: Event, **more: Any) -> dict[tuple[str, str], tuple[int, int, str]]:
    """(line, phase) -> (us of the host, of the device, ops)."""
    rows = table(build(*events, **more), "lines")
    return {(r["line"], r["phase"]): (r["host_ns"] // 1000, r["gpu_ns"] // 1000, r["op"]) for r in rows}


def test_time_in_ops_and_between_them_belongs_to_the_innermost_user_frame() -> None:
    """The model computes at 10-60, of which 20-30 is in torch; the device works on what is launched at 25 and 70."""
    events = [
        step(0, 100),
        frame("train.py(8): main", 0, 100),
        frame("model.py(3): forward", 10, 50),
        frame("torch/nn/functional.py(9): linear", 20, 10),
        op("aten::linear", 22, 6),
        *(launch(25, 1, 1), kernel("gemm", 40, 40, 1), launch(70, 1, 2), kernel("add", 80, 5, 2)),
    ]
    assert by_line(*events) == {
        ("model.py:3 forward", "forward"): (50, 40, "aten::linear"),
        ("train.py:8 main", "forward"): (50, 5, ""),
    }


def test_a_trace_without_steps_has_no_times_per_step() -> None:
    events = frame("train.py(8): main", 0, 100), op("aten::linear", 22, 6)
    titles = [analyze(Run("", (build(*rows),)), "lines").views[0].title for rows in (events, (step(0, 100), *events))]
    assert ["per step" in title for title in titles] == [False, True]


def test_work_of_the_autograd_thread_is_launched_by_the_line_that_waits_for_it() -> None:
    engine = op("autograd::engine::evaluate_function: MmBackward0", 40, 20, tid=AUTOGRAD)
    launched = launch(45, 2, 1, tid=AUTOGRAD), kernel("gemm_dgrad", 50, 30, 1)
    frames = frame("train.py(7): main", 0, 30), frame("train.py(8): main", 30, 70)
    rows = by_line(step(0, 100), *frames, engine, *launched)
    assert rows["train.py:8 main", "backward"] == (20, 30, "MmBackward0")
    assert rows["train.py:8 main", "other"] == (40, 0, "")


LINES = SourceLines(("train.py:5 main", "average.py:9 update"), {"other|aten::mul": (0, 1), "other|aten::add": (1,)})


def test_lines_of_a_recording_are_those_of_the_outermost_ops_in_turn() -> None:
    """What is between ops has no line here; steps that are not counted have no part."""
    ops = [op("aten::mul", 10, 20), op("aten::copy_", 12, 5), op("aten::mul", 40, 30), op("aten::add", 70, 10)]
    rows = by_line(step(0, 100), *ops, recorded={"lines": LINES})
    assert rows == {
        ("train.py:5 main", "forward"): (20, 0, "aten::mul"),
        ("average.py:9 update", "forward"): (40, 0, "aten::mul, aten::add"),
        ("", "forward"): (40, 0, ""),
    }
    assert sum(host for host, _, _ in rows.values()) == 100


def test_a_trace_without_lines_has_no_rows() -> None:
    assert by_line(step(0, 100), op("aten::mul", 10, 20), call("cudaDeviceSynchronize", 40, 10)) == {}


def recorded(other_ms: int, *, num_steps: int = 64, lines: SourceLines | None = LINES, step_ms: int = 100) -> Run:
    """A job of steps of `step_ms`, traced once: 2 ms in forward, an op of 1 ms at one line, two of 7 at another."""
    phases = ("forward", "backward")
    phases_ns = {"forward": step_ms * MS * 2 // 5, "backward": (step_ms * 3 // 5 - other_ms) * MS}
    steps = [StepLine("run", "run", "run", n, 0, n, phases_ns, step_ms * MS, 0, 0, 0) for n in range(num_steps)]
    arms = (Arm("run", "", baseline=True),)
    manifest = Manifest(1, "id", "", "", {}, arms, phases, 1, 0, status="complete")
    ops = [op("aten::mul", 2000, 1000), op("aten::mul", 3000, 4000), op("aten::add", 7000, 3000)]
    trace = build(
        step(0, 10_000), annotation("forward", 0, 2000), *ops, recorded={"manifest": manifest, "lines": lines}
    )
    return Run("run", (trace,), manifest, "run", timings=timings_of([steps], "run"))


def claims(run: Run) -> list[Claim]:
    return list(analyze(run, "lines").findings)


def test_much_time_in_no_phase_is_a_finding_with_the_line_that_has_most_of_it() -> None:
    (claim,) = claims(recorded(25))
    assert (claim.ns, claim.basis) == (25 * MS, Basis(63, is_unprofiled=True))
    assert (claim.subject.line, claim.subject.op) == ("average.py:9 update", "aten::mul, aten::add")
    assert claim.measures == {
        "outside_ns": 25 * MS,
        "share_pct": 25,
        "line_pct": 87.5,
        "traced_ns": 8 * MS,
        "phases": "forward, backward",
    }


def test_the_line_outside_of_the_phases_is_that_of_most_steps_not_of_one_that_was_held_up() -> None:
    run = recorded(25)
    rows: list[Event] = []
    for number, scale_us in enumerate((100, 20_000, 100)):
        start, then = number * 40_000, number * 40_000 + 2000 + scale_us
        rows += [
            step(start, 6000 + scale_us, number),
            annotation("forward", start, 2000),
            op("aten::mul", start + 2000, scale_us),
            op("aten::mul", then, 1000),
            op("aten::add", then + 1000, 3000),
        ]
    texts_ = "average.py:9 update", "loss.py:3 scale"
    lines = SourceLines(texts_, {"other|aten::mul": (1, 0) * 3, "other|aten::add": (0,) * 3})
    trace = build(*rows, recorded={"manifest": run.manifest, "lines": lines})
    (claim,) = claims(dataclasses.replace(run, traces=(trace,)))
    assert (claim.subject.line, claim.measures["line_pct"]) == ("average.py:9 update", pytest.approx(97.6, abs=0.05))


@pytest.mark.parametrize("run", [recorded(9), recorded(25, num_steps=8), recorded(25, lines=None)])
def test_little_time_few_steps_or_no_lines_are_no_finding(run: Run) -> None:
    assert claims(run) == []


def loop_over_pairs(num: int, op_us: int) -> Run:
    """Three steps in which a loss runs `num` ops of `op_us` at line 9, differentiates each in twice that, and waits."""
    events: list[Event] = []
    length = 4 * num * op_us + 1000
    for number in range(3):
        begin, forward_us = number * length, num * op_us
        events += [step(begin, length, number), frame("train.py(5): main", begin, length)]
        events += [frame("loss.py(9): apart", begin, forward_us)]
        for index in range(num):
            sequence = {"Sequence number": number * num + index}
            events.append(op("aten::mean", begin + index * op_us, op_us, **sequence))
            start = begin + forward_us + 2 * index * op_us
            engine = "autograd::engine::evaluate_function: MeanBackward0"
            events.append(op(engine, start, 2 * op_us, **sequence, **{"Fwd thread id": 1}))
    return Run("run", (build(*events),))


def test_backward_ops_belong_to_the_line_of_their_forward_op() -> None:
    rows = table(loop_over_pairs(4, 10), "lines")
    times = {(row["line"], row["phase"]): (row["host_ns"] // 1000, row["num_ops"], row["op"]) for row in rows}
    assert times["loss.py:9 apart", "forward"] == (40, 4, "aten::mean")
    assert times["loss.py:9 apart", "backward"] == (80, 4, "MeanBackward0")
    assert sum(time for time, _, _ in times.values()) == 4 * 4 * 10 + 1000


def test_work_that_backward_ops_launch_belongs_to_the_line_of_their_forward_op() -> None:
    sequence = {"Sequence number": 3}
    forward = frame("model.py(8): forward", 0, 20), op("aten::mm", 5, 10, **sequence)
    wait = frame("train.py(7): main", 0, 100)
    engine = op(
        "autograd::engine::evaluate_function: MmBackward0", 40, 20, tid=AUTOGRAD, **sequence, **{"Fwd thread id": 1}
    )
    launched = launch(45, 2, 1, tid=AUTOGRAD), kernel("gemm_dgrad", 50, 30, 1)
    rows = by_line(step(0, 100), wait, *forward, engine, *launched)
    assert rows["model.py:8 forward", "backward"] == (20, 30, "MmBackward0")
    assert sum(host for host, _, _ in rows.values()) == 100
