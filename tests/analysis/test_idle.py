"""What fills idle time: exact on a few lines, and always as much as the partition says."""

from __future__ import annotations

from collections import Counter

import pytest
from builder import Event, annotation, build, call, frame, kernel, launch, op, step, table
from paths import TRACES
from pausing_host import APART, USUAL_US, layers
from simulator import a_job, run_of

from traceq.analysis.registry import analyze
from traceq.facts.timeline.steps import steps
from traceq.kineto.read import read_trace
from traceq.model import Run

IDLE = (
    "spin_wait",
    "sync_wait",
    "alloc_wait",
    "host_bound",
    "compiling",
    "launch_latency",
    "tail",
    "dataload_wait",
    "python",
    "once",
)
FIRST = (launch(1, 1, 1), kernel("a", 2, 8, 1))


def filled(*events: Event) -> dict[tuple[str, str], float]:
    """Us by (cause, op) of a step that begins at 0; a runs from 2 to 10."""
    rows = table(build(step(0, 100), *FIRST, *events), "idle")
    return {(row["cause"], row["op"]): row["dur_ns"] / 1000 for row in rows}


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def test_each_op_answers_for_its_own_time_in_a_gap() -> None:
    """0-2 and 10-20 Python, 20-40 outer, of which 25-35 inner, then mm until the launch of b returns, at 52."""
    ops = op("aten::outer", 20, 20), op("aten::inner", 25, 10), op("aten::mm", 40, 13)
    assert filled(*ops, launch(50, 2, 2), kernel("b", 55, 45, 2)) == {
        ("python", ""): 12,
        ("host op", "aten::outer"): 10,
        ("host op", "aten::inner"): 10,
        ("host op", "aten::mm"): 12,
        ("launch queue", "aten::mm"): 3,
    }


def test_without_host_ops_it_is_not_known_what_the_host_does() -> None:
    rows = table(build(*FIRST, launch(50, 2, 2), kernel("b", 55, 45, 2)), "idle")
    assert {(row["cause"], row["dur_ns"]) for row in rows} == {("host", 42_000 + 1_000), ("launch queue", 3_000)}


def test_a_kernel_that_spins_is_named_with_what_launched_it() -> None:
    spin = kernel("at::cuda::(anonymous namespace)::spin_kernel(long)", 12, 80, 2)
    assert filled(launch(8, 2, 2), spin)["spin wait", spin["name"]] == 80
    assert filled(op("mine::throttle", 7, 4), launch(8, 2, 2), spin)["spin wait", "mine::throttle"] == 80


def test_waiting_for_data_is_no_hosts_work_though_ops_run_in_it() -> None:
    loads = annotation(LOADER, 12, 30), op("aten::stack", 20, 10)
    idle_us = filled(*loads, launch(50, 2, 2), kernel("b", 53, 47, 2))
    assert idle_us == {("data loader", ""): 30, ("python", ""): 2 + 2 + 10, ("launch queue", ""): 1}


def test_syncs_and_allocations_stand_with_the_op_and_line_that_asked_for_them() -> None:
    events = (
        op("aten::nonzero", 12, 20),
        frame("model.py(41): mask", 11, 30),
        call("cudaDeviceSynchronize", 14, 16),
        call("cudaMalloc", 45, 3),
        launch(50, 2, 2),
        kernel("b", 52, 48, 2),
    )
    rows = table(build(step(0, 100), *FIRST, *events), "idle")
    idle_us = {(r["cause"], r["category"], r["op"], r["line"]): r["dur_ns"] / 1000 for r in rows}
    assert idle_us["sync", "sync_wait", "aten::nonzero", "model.py:41 mask"] == 16
    assert idle_us["allocation", "alloc_wait", "cudaMalloc", ""] == 3
    assert idle_us["host op", "host_bound", "aten::nonzero", "model.py:41 mask"] == 4
    assert idle_us["python", "host_bound", "", "model.py:41 mask"] == 1 + 9


def test_a_gap_counts_once_for_each_thing_that_fills_it() -> None:
    """Mm fills 4 us of the first gap, in two parts, and 2 of the second."""
    first = op("aten::mm", 10, 2), op("aten::mm", 14, 2), launch(20, 1, 2), kernel("b", 21, 9, 2)
    second = op("aten::mm", 30, 2), launch(35, 1, 3), kernel("c", 36, 64, 3)
    rows = table(build(step(0, 100), *FIRST, *first, *second), "idle")
    by_op = {r["op"]: (r["num"], r["dur_ns"], r["longest_ns"]) for r in rows}
    assert by_op["aten::mm"] == (2, 6000, 4000)
    assert by_op[""] == (3, 2000 + 7000 + 4000, 7000)


def test_python_between_ops_stands_with_the_annotation_around_it() -> None:
    around = annotation("Optimizer.step#SGD.step", 12, 20), launch(30, 1, 2), kernel("b", 31, 69, 2)
    assert filled(*around) == {("python", ""): 2 + 2, ("python", "Optimizer.step#SGD.step"): 19}


def test_a_device_that_is_not_recorded_has_no_idle_time_to_show() -> None:
    """The main thread of a CPU job has: there, launches would tell of a device."""
    events = step(0, 100), op("aten::add", 0, 20), op("aten::mul", 90, 10)
    views = [analyze(Run("", (trace,)), "idle").views for trace in (build(*events), build(*events, launch(5, 2, 1)))]
    assert [[view.key for view in of_trace] for of_trace in views] == [["idle"], []]


def test_ops_and_kernels_that_run_once_are_no_idle_time() -> None:
    """A first call of 300 ms, and later ones: with the first, the main thread runs ops for most of the trace."""
    calls = [(0, 300_000), *((10_000 * n, 1_000) for n in range(40, 60))]
    (view,) = analyze(Run("", (build(*(op("aten::conv2d", start, us) for start, us in calls)),)), "idle").views
    assert view.note == "The main thread runs no op for 271 ms of the trace, 45.9 %, beside what is done once."


def test_where_the_host_pauses_no_op_takes_the_time() -> None:
    """Eight ranks of which the hosts did not run for 60 to 71 % of a step were to do less in `aten::mm`."""
    rows, usual = (table(build(*layers(each)), "idle") for each in (APART, {}))
    paused = [row for row in rows if row["cause"] == "host pause"]
    assert sum(row["dur_ns"] for row in paused) == 1_000 * (sum(APART.values()) + len(APART) * USUAL_US)
    assert max(row["longest_ns"] for row in rows if row["cause"] == "host op") <= 1_000 * (USUAL_US + 20)
    assert not any(row["cause"] == "host pause" for row in usual)


def test_a_busy_device_has_no_idle_time_to_show() -> None:
    trace = build(step(1, 99), launch(1, 1, 1), kernel("a", 2, 98, 1))
    assert analyze(Run("", (trace,)), "idle").views == ()


def partition(run: Run) -> dict[tuple[int, str, str], int]:
    """Ns of each rank, phase and category of idle time over the counted steps, by the partition."""
    counted = {
        (trace.rank, step) for trace in run.traces for step in steps(trace).number[steps(trace).counted].tolist()
    }
    sums: Counter[tuple[int, str, str]] = Counter()
    for row in table(run, "partition"):
        if (row["rank"], row["step"]) in counted and row["category"] in IDLE:
            sums[row["rank"], row["phase"], row["category"]] += row["dur_ns"]
    return dict(sums)


def idle(run: Run) -> dict[tuple[int, str, str], int]:
    sums: Counter[tuple[int, str, str]] = Counter()
    for row in table(run, "idle"):
        sums[row["rank"], row["phase"], row["category"]] += row["dur_ns"]
    return dict(sums)


@pytest.mark.parametrize("seed", range(40))
def test_what_fills_idle_time_adds_up_to_it_in_every_simulated_job(seed: int) -> None:
    run = run_of(a_job(seed, num_ranks=1 + seed % 2))
    assert idle(run) == partition(run)


@pytest.mark.parametrize("name", ["ddp-a100/rank0", "owlv2/h100", "resnet50-2021/workers0", "gloo-cpu/rank34"])
def test_what_fills_idle_time_adds_up_to_it_in_every_real_trace(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no trace {name} beside this checkout")
    run = Run("", (read_trace(path),))
    assert idle(run) == partition(run)
