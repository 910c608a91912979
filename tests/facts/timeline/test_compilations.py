"""When threads compile, what, and for the how many-th time."""

from __future__ import annotations

import pytest
from builder import AUTOGRAD, Event, annotation, build, call, frame, kernel, launch, op, step, table

from traceq.facts.timeline.compilations import PASSES, compilations, compiling


def compiled(start: float, us: float, compile_id: str, *, tid: int = 1, backward: bool = False) -> list[Event]:
    """The rows of one compilation as torch 2.13 writes them, with an op on tensors without data."""
    outer, inner = "dynamo", "_compile.compile_inner"
    if backward:
        outer, inner = "entire_backward_compile", "backward._backward_impl"
    return [
        op(outer, start, us, tid=tid),
        annotation(f"{outer}_data: fn_name={inner}, compile_id={compile_id}", start + 1, 1, tid=tid),
        op(f"{inner} (dynamo_timed)", start + 3, us - 4, tid=tid),
        op("aten::mm", start + 4, us - 6, tid=tid),
        op("autograd::engine::evaluate_function: MmBackward0", start + 4, 1, tid=tid),
    ]


def cells(*events: Event) -> dict[tuple[str, str], int]:
    """(phase, category) -> us of the only step."""
    return {(row["phase"], row["category"]): row["dur_ns"] // 1000 for row in table(build(*events), "partition")}


def test_a_compilation_is_known_by_its_metadata_and_its_function_by_the_frame_that_runs_it() -> None:
    runs = [op("Torch-Compiled Region: 3/7", 70, 20), frame("lib/model.py(14): forward", 72, 10)]
    pass_ = compiled(100, 20, "3/7", backward=True)
    times = compilations(build(step(0, 200), *compiled(10, 50, "3/7"), *runs, *pass_))
    assert (times.end - times.start).tolist() == [50_000, 20_000]
    assert times.compile_ids == ("3/7", "3/7")
    assert times.functions == ("model.py:14 forward",) * 2
    assert times.of_pass.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "of_pass"),
    [
        ("_compile", "forward"),  # torch 2.0
        ("compile_inner", "forward"),
        ("_compile.<locals>.compile_inner", "forward"),
        ("compile_fx.<locals>.bw_compiler", "backward"),
        ("CachingAutotuner.benchmark_all_configs", "other"),
        ("guard_collective", "other"),  # in every step
    ],
)
def test_ranges_of_other_versions_tell_the_pass(name: str, of_pass: str) -> None:
    (number,) = compilations(build(step(0, 100), op(f"{name} (dynamo_timed)", 10, 50))).of_pass.tolist()
    assert PASSES[number] == of_pass


def test_compiling_is_a_phase_and_a_category_of_a_cpu_and_its_ops_are_none_of_the_step() -> None:
    """Between 10 and 60 the main thread compiles, in backward from 70 to 90, of which 75 to 85 are compiling."""
    node = op("CompiledFunctionBackward", 70, 20), op("autograd::engine::evaluate_function: C", 70, 20)
    pass_ = compiled(75, 10, "0/1", backward=True)
    assert cells(step(0, 100), op("aten::relu", 2, 4), *compiled(10, 50, "0/1"), *node, *pass_) == {
        ("forward", "cpu_compute"): 4,
        ("forward", "python"): 16,
        ("compiling", "compiling"): 60,
        ("backward", "cpu_compute"): 10,
        ("other", "python"): 10,
    }


def test_a_device_that_computes_meanwhile_hides_compiling() -> None:
    rows = launch(2, 3, 1), kernel("gemm", 5, 25, 1), launch(70, 5, 2), kernel("gemm", 80, 20, 2)
    assert cells(step(0, 100), *rows, *compiled(10, 50, "0/0")) == {
        ("forward", "host_bound"): 20,
        ("forward", "compute"): 45,
        ("compiling", "compiling"): 30,
        ("forward", "launch_latency"): 5,
    }


def test_idle_time_and_the_critical_path_know_compiling() -> None:
    rows = launch(2, 3, 1), kernel("gemm", 5, 5, 1), launch(70, 5, 2), kernel("gemm", 80, 20, 2)
    trace = build(step(0, 100), *rows, *compiled(10, 50, "0/0"))
    idle = {row["cause"]: row["dur_ns"] for row in table(trace, "idle")}
    assert idle == {"compiling": 50_000, "python": 20_000, "launch queue": 5_000}
    path = {(row["kind"], row["phase"]): row["step_ns"] for row in table(trace, "critical")}
    assert path["compiling", "compiling"] == 50_000
    assert sum(path.values()) == 100_000


def test_a_thread_compiles_for_the_host_only_while_the_main_thread_waits_for_it() -> None:
    trace = build(
        step(0, 100), op("aten::relu", 20, 10), call("cudaLaunchKernel", 35, 5), *compiled(10, 50, "0/0", tid=3)
    )
    assert compiling(trace).tolist() == [[10_000, 20_000], [30_000, 35_000], [40_000, 60_000]]
    backward = build(step(0, 100), *compiled(10, 50, "0/0", tid=AUTOGRAD, backward=True))
    assert compiling(backward).tolist() == [[10_000, 60_000]]


def test_self_times_of_ops_around_leave_compiling_out() -> None:
    region = op("Torch-Compiled Region: 0/1", 5, 80)  # a graph break inside compiles the rest
    rows = table(build(step(0, 100), region, *compiled(10, 50, "1/1")), "host")
    assert [(row["name"], row["self_ns"]) for row in rows] == [("Torch-Compiled Region: 0/1", 30_000)]
