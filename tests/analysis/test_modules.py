"""nn.Modules: host time, device time and kernels of each, backward with the module it differentiates."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from builder import AUTOGRAD, Event, annotation, build, frame, kernel, launch, op, step, table
from paths import TRACES

from traceq.analysis.registry import analyze
from traceq.facts.events.forward_ops import forward_op
from traceq.facts.timeline.modules import modules
from traceq.model import Run
from traceq.runs.read import read

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no {TRACES}")


def forward(number: int, start: int) -> list[Event]:
    """A layer that runs 10 us, in it an op that autograd numbers and its kernel."""
    return [
        frame(f"nn.Module: Linear_{number}", start, 10),
        op("aten::linear", start + 1, 8, **{"Sequence number": number + 5, "Fwd thread id": 0}),
        op("aten::addmm", start + 2, 6, **{"Sequence number": number + 5, "Fwd thread id": 0}),
        launch(start + 3, 2, 100 + number),
        kernel("gemm", start + 20, 5 + number, 100 + number),
    ]


def backward(number: int, start: int) -> list[Event]:
    reported = {"Sequence number": number + 5, "Fwd thread id": 1}
    return [
        op("autograd::engine::evaluate_function: AddmmBackward0", start, 10, tid=AUTOGRAD, **reported),
        op("AddmmBackward0", start + 1, 8, tid=AUTOGRAD, **reported),
        op("aten::mm", start + 2, 6, tid=AUTOGRAD),
        launch(start + 3, 2, 200 + number, tid=AUTOGRAD),
        kernel("gemm_backward", start + 60, 20 + number, 200 + number),
    ]


NET = [
    step(0, 300),
    annotation("fwd", 0, 100),
    annotation("bwd", 100, 200),
    frame("nn.Module: Net_0", 10, 60),
    *forward(0, 20),
    *forward(1, 40),
    launch(90, 2, 300),
    kernel("loss", 95, 1, 300),
    *backward(1, 120),
    *backward(0, 140),
]


def test_a_module_has_its_own_time_and_that_of_those_inside_it() -> None:
    rows = {(row["phase"], row["module"]): [*row.values()][3:] for row in table(build(*NET), "modules")}
    us = 1000
    assert rows == {
        ("fwd", "Net_0"): [40 * us, 0, 0, 60 * us, 11 * us, 2],
        ("fwd", "Net_0.Linear_0"): [10 * us, 5 * us, 1] * 2,
        ("fwd", "Net_0.Linear_1"): [10 * us, 6 * us, 1] * 2,
        ("fwd", "(no module)"): [40 * us, 1 * us, 1] * 2,
        ("bwd", "Net_0"): [0, 0, 0, 0, 41 * us, 2],
        ("bwd", "Net_0.Linear_0"): [0, 20 * us, 1] * 2,
        ("bwd", "Net_0.Linear_1"): [0, 21 * us, 1] * 2,
        ("bwd", "(no module)"): [200 * us, 0, 0] * 2,
    }


def test_kernels_of_a_module_are_listed_by_phase() -> None:
    report = analyze(Run("", (build(*NET),)), "modules")
    assert [row[1:] for row in report.tables[1].rows][:2] == [
        ("bwd", "Net_0.Linear_1", "gemm_backward", 1, 21_000),
        ("bwd", "Net_0.Linear_0", "gemm_backward", 1, 20_000),
    ]


def test_people_see_modules_of_one_kind_as_one_line() -> None:
    (view,) = analyze(Run("", (build(*NET),)), "modules").views
    assert [row[:2] for row in view.rows] == [("Linear", 2), ("(no module)", None)]
    assert view.rows[0][3:5] == (52_000, 4)


def test_a_checkpoint_that_runs_a_module_again_in_backward_runs_the_same_module() -> None:
    again = [frame("nn.Module: Linear_0", 200, 10, tid=AUTOGRAD), launch(203, 2, 400, tid=AUTOGRAD)]
    trace = build(*NET, *again, kernel("gemm", 230, 5, 400))
    rows = {(row["phase"], row["module"]): row["num_kernels"] for row in table(trace, "modules")}
    assert rows["bwd", "Net_0.Linear_0"] == 2
    assert modules(trace).paths == ("Net_0", "Net_0.Linear_0", "Net_0.Linear_1")


def test_of_forward_ops_with_one_number_the_innermost_is_differentiated() -> None:
    trace = build(*NET)
    names = {
        trace.events.text(row): trace.events.text(result) for row, result in enumerate(forward_op(trace)) if result >= 0
    }
    assert names == dict.fromkeys(
        ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0"), "aten::addmm"
    )


def test_a_thread_id_of_autograd_means_the_thread_whose_numbers_it_names() -> None:
    elsewhere = [op("aten::rand", index, 1, tid=9, **{"Sequence number": 6, "Fwd thread id": 0}) for index in (80, 85)]
    elsewhere += [op("aten::add", 88, 1, tid=9, **{"Sequence number": 70, "Fwd thread id": 0})]
    trace = build(*NET, *elsewhere)
    assert {trace.events.text(row) for row in forward_op(trace) if row >= 0} == {"aten::addmm"}


def test_backward_ops_of_a_forward_before_the_window_have_none() -> None:
    """A window that begins with a backward: what is forward in it is of the next step."""
    backward = op("AddmmBackward0", 10, 5, tid=9, **{"Sequence number": 3, "Fwd thread id": 1})
    later = op("aten::addmm", 40, 5, **{"Sequence number": 8})
    assert forward_op(build(step(0, 100), backward, later)).tolist() == [-1] * 3


@needs_traces
@pytest.mark.parametrize("name", ["ddp-a100/rank0", "gloo-cpu/rank34", "resnet-ddp-mi300/rank0"])
def test_forward_ops_are_those_that_kineto_draws_arrows_from(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    flows: dict[str, dict[int, int]] = {"s": {}, "f": {}}
    for event in json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]:
        if event.get("cat") == "fwdbwd":
            flows[event["ph"]][event["id"]] = int(event["ts"] * 1000)
    trace = read(path).traces[0]
    result = forward_op(trace)
    rows = np.flatnonzero(result >= 0)
    ours = dict(zip(trace.events.ts[rows].tolist(), trace.events.ts[result[rows]].tolist(), strict=True))
    assert flows["s"]
    assert {ours[index] - flows["s"][number] for number, index in flows["f"].items()} == {0}


@needs_traces
@pytest.mark.parametrize("name", ["owlv2/h100", "owlv2/mi300", "resnet-ddp-mi300/rank0"])
def test_modules_of_a_real_phase_add_up_to_it(name: str) -> None:
    run = read(TRACES / f"{name}.json.gz")
    sums: Counter[tuple[str, str]] = Counter()
    for row in table(run, "modules"):
        for key in ("host_ns", "gpu_ns", "num_kernels"):
            sums[row["phase"], key] += row[key]
    for row in table(run, "phases"):
        wanted = (row["cpu_ns"], row["gpu_sum_ns"], row["num_kernels"])
        assert tuple(sums[row["name"], key] for key in ("host_ns", "gpu_ns", "num_kernels")) == wanted


def test_without_python_stacks_the_report_says_what_would_record_them() -> None:
    report = analyze(Run("", (build(step(0, 10), op("aten::mm", 1, 5)),)), "modules")
    assert report.views == ()
    assert [unknown.argument for unknown in report.unknown] == ["with_stack=True"]


def test_modules_of_a_recording_are_those_of_the_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    model = nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.ReLU(), nn.Linear(16, 4)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profile:
        model(torch.randn(8, 16)).sum().backward()
    profile.export_chrome_trace(str(tmp_path / "rank0.json"))
    run = read(tmp_path / "rank0.json")
    result = modules(run.traces[0]).paths
    assert {path.count(".") for path in result} == {name.count(".") + (name != "") for name, _ in model.named_modules()}
    assert len(result) == len(list(model.modules()))
    backward = [row for row in table(run, "modules") if row["phase"] == "backward"]
    linear = [row for row in backward if "Linear" in row["module"]]
    assert len(linear) == 2
    assert all(row["host_ns"] > 0 for row in linear)


def test_modules_nested_without_end_take_memory_that_grows_with_their_number() -> None:
    num = 2000
    frames = [frame(f"nn.Module: Block_{level}", level, 4 * num - 2 * level) for level in range(num)]
    tree = modules(build(step(0, 4 * num), *frames, launch(num, 1, 1), kernel("gemm", num + 5, 10, 1)))
    assert sum(map(len, tree.paths)) < 100 * num
    deepest = len(tree) - 1
    assert set(tree.by_name[tree.by_name >= 0][deepest:].tolist()) == {deepest}
