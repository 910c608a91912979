"""Nodes of CUDA graphs with ids: each kernel runs the call of its node, on any stream, and in any order of replays."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from decimal import Decimal
from pathlib import Path

import pytest
from builder import Event, annotation, build, call, frame, kernel, launch, op, table, write
from paths import TRACES
from terminal import traceq

from traceq import locations
from traceq.analysis.registry import analyze
from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import graph_labels, graph_replays
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.timeline.modules import modules
from traceq.model import Run, Trace
from traceq.runs.read import read

INFERENCE = TRACES / "inference"


def capture(start: int, *names: str, instantiate: bool = True) -> list[Event]:
    """A capture of 10 us per call, each in an op and a module of this name; then the graph is instantiated."""
    end = start + 10 * len(names) + 1
    rows = [call("cudaStreamBeginCapture", start, 1), call("cudaStreamEndCapture", end, 1)]
    for place, name in enumerate(names):
        begin = start + 1 + 10 * place
        rows += [
            frame(f"nn.Module: {name}_0", begin, 9),
            op(f"aten::{name}", begin + 1, 7),
            launch(begin + 2, 2, begin),
        ]
    return [*rows, call("cudaGraphInstantiateWithFlags", end + 2, 1)] if instantiate else rows


def replay(
    start: int, corr: int, graph: int, *names: str, order: random.Random | None = None, **args: str
) -> list[Event]:
    """A replay of 5 us per kernel; `order` shuffles their starts and streams. A kernel is named by what it computes."""
    slots = list(range(len(names)))
    if order is not None:
        order.shuffle(slots)
    nodes = [
        {"graph id": graph, "graph node id": (graph << 32) + 3 * place, **args} for place in range(len(names))
    ]  # events and joins are nodes, too
    kernels = [
        kernel(name, start + 10 + 6 * slot, 5, corr, stream=7 + slot % 3 if order else 7, **node)
        for name, slot, node in zip(names, slots, nodes, strict=True)
    ]
    return [call("cudaGraphLaunch", start, 5, corr), *kernels]


def pairs(trace: Trace) -> list[tuple[str, str]]:
    """Each kernel with the innermost op that it counts to, "" without one."""
    kernels = launched_kernels(trace)
    names = [trace.events.text(row) for row in device_work(trace).rows[kernels.work].tolist()]
    return [
        (name, trace.events.text(row) if row >= 0 else "") for name, row in zip(names, kernels.op.tolist(), strict=True)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_every_kernel_runs_the_op_that_its_node_was_captured_in(seed: int) -> None:
    """Graphs of random sizes, as many of them alike, replayed in any order, their kernels in any order on streams."""
    rng = random.Random(seed)
    graphs = [[f"g{graph}n{node}" for node in range(rng.randint(1, 3))] for graph in range(4)]
    rows = [row for graph, names in enumerate(graphs) for row in capture(100 * graph, *names)]
    turns = [*range(4), *(rng.randrange(4) for _ in range(6))]
    rng.shuffle(turns)
    for number, graph in enumerate(turns):
        rows += replay(1000 + 100 * number, 900 + number, 40 + 2 * graph, *graphs[graph], order=rng)
    result = pairs(build(*rows))
    assert len(result) == sum(len(graphs[graph]) for graph in turns)
    assert all(of_op == f"aten::{name}" for name, of_op in result)


LATE = [*capture(0, "a", "b", instantiate=False), *capture(100, "c", "d", instantiate=False)]
ALIKE = [*capture(0, "a", "b"), *capture(100, "c", "d")]


@pytest.mark.parametrize(
    "rows",
    [
        [*LATE, *replay(300, 900, 5, "c", "d"), *replay(400, 901, 6, "a", "b")],
        [*ALIKE, *replay(300, 900, 5, "c", "d")],
        [*capture(0, "a", "b"), *replay(300, 900, 5, "a", "b"), *replay(400, 901, 6, "x", "y")],
        [*replay(300, 900, 5, "a", "b"), *capture(1000, "a", "b")],
    ],
    ids=["instantiated-late", "not-all-replayed", "another-graph-as-large", "before"],
)
def test_where_graphs_could_be_others_their_work_belongs_to_the_replay(rows: list[Event]) -> None:
    assert (graph_replays(build(*rows)).captured == -1).all()


def test_annotations_of_torch_name_the_modules_of_nodes() -> None:
    """No capture in the trace: what has a label counts to it, the rest to the module that replays."""
    runner = frame("nn.Module: Runner_0", 90, 300)
    labelled = [
        *replay(100, 900, 5, "qkv", name="layers.0.attention.wq"),
        *replay(200, 901, 6, "up", "down", str="layers.1.mlp"),
        *replay(300, 902, 7, "rest"),
    ]
    trace = build(runner, *labelled)
    by_module = {row["module"]: row for row in table(trace, "modules")}
    assert {name: row["gpu_ns"] for name, row in by_module.items()} == {
        "Runner_0": 5_000,
        "layers_0": 0,
        "layers_0.attention": 0,
        "layers_0.attention.wq": 5_000,
        "layers_1": 0,
        "layers_1.mlp": 10_000,
    }
    assert by_module["layers_0"]["tree_gpu_ns"] == 5_000
    coverage = table(trace, "coverage")[0]
    assert (coverage["replay_ns"], coverage["uncaptured_ns"]) == (20_000, 5_000)
    assert "25.0 % of it" in analyze(Run("", (trace,)), "modules").views[0].note


def test_an_annotation_without_end_names_modules_to_a_depth() -> None:
    trace = build(*replay(100, 900, 5, "qkv", name=".".join("a" * 5000)))
    assert len(modules(trace)) == modules(trace).by_label[0] + 1 == 64


def test_a_module_that_the_trace_shows_precedes_an_annotation() -> None:
    shown = build(*capture(0, "a", "b"), *replay(300, 900, 5, "a", "b", name="phase"))
    assert {row["module"]: row["gpu_ns"] for row in table(shown, "modules") if row["gpu_ns"]} == {
        "a_0": 5_000,
        "b_0": 5_000,
    }


STEP = annotation("step[DECODE bs=8]", 90, 300)


def test_a_capture_in_an_earlier_window_names_the_modules(tmp_path: Path) -> None:
    write(tmp_path / "capture.json", *capture(0, "a", "b"), *capture(100, "c"), baseTimeNanoseconds=10**9)
    replays = [*replay(100, 900, 5, "a", "b"), *replay(200, 901, 6, "c"), *replay(300, 902, 5, "a", "b")]
    write(tmp_path / "step.json", STEP, *replays, baseTimeNanoseconds=9 * 10**9)
    run = read(tmp_path)
    assert [caveat.code for caveat in run.caveats] == ["shown_window", "captured_before"]
    assert str(tmp_path / "capture.json") in run.caveats[1].text
    by_module = {row["module"]: row["gpu_ns"] for row in table(run, "modules") if row["gpu_ns"]}
    assert by_module == {"a_0": 10_000, "b_0": 10_000, "c_0": 5_000}
    assert table(run, "coverage")[0]["uncaptured_ns"] == 0
    alone = read(tmp_path / "step.json")
    assert table(alone, "modules") == []
    assert table(alone, "coverage")[0]["uncaptured_ns"] == 25_000


def test_a_capture_as_a_second_path_is_not_shown_apart(tmp_path: Path) -> None:
    captured = write(tmp_path / "capture.json", *capture(0, "a", "b"))
    replays = write(tmp_path / "step.json", STEP, *replay(500, 900, 5, "a", "b"))
    other = write(tmp_path / "other.json", *capture(0, "x", "y", "z"))
    shown = traceq("show", replays, captured)
    assert (shown.out.count("step.json"), shown.out.count("capture.json")) == (1, 0)
    assert str(captured) in shown.err
    assert "other.json" in traceq("show", replays, other).out
    assert table(read(replays, beside=[locations.place(captured)]), "coverage")[0]["uncaptured_ns"] == 0


def test_a_window_that_captures_nothing_is_no_source(tmp_path: Path) -> None:
    write(tmp_path / "first.json", op("aten::mm", 0, 5), baseTimeNanoseconds=10**9)
    write(tmp_path / "step.json", STEP, *replay(100, 900, 5, "a"), baseTimeNanoseconds=9 * 10**9)
    assert [caveat.code for caveat in read(tmp_path).caveats] == ["shown_window"]


def loaded(name: str) -> list[Event]:
    content = json.loads(gzip.decompress((INFERENCE / f"{name}.json.gz").read_bytes()), parse_float=Decimal)
    return [event for event in content["traceEvents"] if event.get("ph") == "X"]


def captured_by_hand(name: str) -> list[tuple[str, str]]:
    """(kernel, innermost nn.Module) of each captured launch, in order: ROCm notes the kernel of a launch."""
    events = loaded(name)
    calls = sorted((event for event in events if event["cat"] == "cuda_runtime"), key=lambda event: event["ts"])
    modules = [event for event in events if event["name"].startswith("nn.Module: ")]
    has_work = {
        event["args"]["correlation"] for event in events if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
    }
    result, is_open = list[tuple[str, str]](), False
    for event in calls:
        is_open = event["name"] == "hipStreamBeginCapture" or (is_open and event["name"] != "hipStreamEndCapture")
        if is_open and "kernel" in event["args"] and event["args"]["correlation"] not in has_work:
            around = [each for each in modules if each["tid"] == event["tid"] and encloses(each, event["ts"])]
            innermost = max(around, key=lambda each: each["ts"], default=None)
            result.append((event["args"]["kernel"], innermost["name"].removeprefix("nn.Module: ") if innermost else ""))
    return result


def encloses(outer: Event, ts: Decimal) -> bool:
    return bool(outer["ts"] <= ts < outer["ts"] + outer["dur"])


@pytest.mark.parametrize(
    ("name", "num", "least"),
    [("vllm-piecewise-mi300", 361, 1), ("vllm-decode-mi300", 421, 1), ("sglang-decode-mi300", 544, 300)],
)
def test_real_engines_replay_what_an_earlier_window_captured(name: str, num: int, least: int, tmp_path: Path) -> None:
    """VLLM and SGLang, each with the window of its captures: kernels are those captured, and so are their modules."""
    for part in (name, f"{name}-capture"):
        if not (INFERENCE / f"{part}.json.gz").exists():
            pytest.skip(f"no {part} in {TRACES}")
        shutil.copy(INFERENCE / f"{part}.json.gz", tmp_path)
    events = loaded(name)
    launches = {event["args"]["correlation"] for event in events if event["name"] == "hipGraphLaunch"}
    nodes = [event for event in events if event["cat"] == "kernel" and event["args"]["correlation"] in launches]
    nodes.sort(key=lambda event: (event["args"]["correlation"], event["ts"]))
    expected = captured_by_hand(f"{name}-capture")
    assert [event["name"] for event in nodes] == [kernel for kernel, _ in expected]
    assert len(nodes) == num
    truth: dict[str, int] = {}
    for event, (_, module) in zip(nodes, expected, strict=True):
        truth[module] = truth.get(module, 0) + int(1000 * event["dur"])
    run = read(tmp_path)
    (trace,) = run.traces
    labels, is_replayed = graph_labels(trace), graph_replays(trace).replayed
    work = device_work(trace)
    result: dict[str, int] = {}
    for label, ns in zip(
        labels.label[is_replayed].tolist(), (work.end - work.start)[is_replayed].tolist(), strict=True
    ):
        module = labels.names[label].rpartition(".")[2]
        result[module] = result.get(module, 0) + ns
    assert result == truth
    assert len(truth) >= least
    (coverage,), (step,) = table(run, "coverage"), table(run, "inference")
    assert coverage["uncaptured_ns"] == 0
    assert step["captured_ns"] == step["replay_ns"] == coverage["replay_ns"] == sum(truth.values())
