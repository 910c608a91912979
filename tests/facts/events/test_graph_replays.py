"""A node of a CUDA graph belongs to the call that was captured for it, where the trace shows the capture."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from builder import AUTOGRAD, MAIN, OTHER, Event, annotation, build, call, frame, kernel, launch, op, step, table, write
from oracle.graphs import replayed_ns
from oracle.reader import read
from paths import TRACES

from traceq.analysis.registry import analyze
from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import graph_replays
from traceq.facts.events.kernels import launched_kernels
from traceq.kineto.read import read_trace
from traceq.model import Run, Trace

INFERENCE = TRACES / "inference"


def capture(start: int, *names: str, first: int = 100, tid: int = MAIN) -> list[Event]:
    """A capture of 10 us per call, each in an op and a module of this name."""
    end = start + 10 * len(names) + 1
    rows = [call("cudaStreamBeginCapture", start, 1, tid=tid), call("cudaStreamEndCapture", end, 1, tid=tid)]
    for place, name in enumerate(names):
        begin = start + 1 + 10 * place
        rows += [frame(f"nn.Module: {name}_0", begin, 9, tid=tid), op(f"aten::{name}", begin + 1, 7, tid=tid)]
        rows.append(launch(begin + 2, 2, first + place, tid=tid))
    return rows


def replay(start: int, corr: int, *names: str, streams: tuple[int, ...] = (7,)) -> list[Event]:
    """A replay whose kernels take 5 us each."""
    kernels = [
        kernel(name, start + 10 + 6 * place, 5, corr, stream=streams[place % len(streams)])
        for place, name in enumerate(names)
    ]
    return [call("cudaGraphLaunch", start, 5, corr), *kernels]


def ops(trace: Trace) -> list[str]:
    """The innermost op of each kernel by start, "" without one."""
    kernels = launched_kernels(trace)
    return [trace.events.text(row) if row >= 0 else "" for row in kernels.op.tolist()]


def test_a_node_belongs_to_the_op_and_module_of_its_capture() -> None:
    trace = build(
        *capture(0, "norm", "mlp"),
        *replay(100, 1, "k_norm", "k_mlp"),
        *replay(200, 2, "k_norm", "k_mlp"),
        launch(300, 2, 3),
        kernel("eager", 310, 5, 3),
    )
    replays, work = graph_replays(trace), device_work(trace)
    assert replays.replayed.tolist() == [True] * 4 + [False]
    assert trace.events.correlation[replays.captured[:4]].tolist() == [100, 101, 100, 101]
    assert replays.calls(work.call)[4] == work.call[4]
    assert ops(trace) == ["aten::norm", "aten::mlp", "aten::norm", "aten::mlp", ""]
    by_module = {row["module"]: row["gpu_ns"] for row in table(trace, "modules")}
    assert by_module == {"norm_0": 10_000, "mlp_0": 10_000, "(no module)": 5_000}
    coverage = table(trace, "coverage")[0]
    assert (coverage["replay_ns"], coverage["uncaptured_ns"]) == (20_000, 0)


def test_several_graphs_are_replayed_in_the_order_of_their_captures() -> None:
    captures = [*capture(0, "a"), *capture(50, "b", "c", first=200), *capture(100, "d", first=300)]
    replays = [*replay(200, 1, "x"), *replay(250, 2, "y", "z"), *replay(300, 3, "w")]
    again = [*replay(400, 4, "x"), *replay(450, 5, "y", "z"), *replay(500, 6, "w")]
    names = ["aten::a", "aten::b", "aten::c", "aten::d"]
    assert ops(build(*captures, *replays)) == names
    assert ops(build(*captures, *replays, *again)) == 2 * names


def test_backward_is_captured_on_the_thread_of_autograd() -> None:
    rows = capture(0, "forward", "backward")
    rows[-3:] = [{**row, "tid": AUTOGRAD} for row in rows[-3:]]
    assert ops(build(*rows, *replay(100, 1, "f", "b"))) == ["aten::forward", "aten::backward"]


TWO = [*capture(0, "a", "b"), *capture(50, "c", "d", first=200)]
THREE = [*capture(0, "a"), *capture(50, "b", "c", first=200)]


@pytest.mark.parametrize(
    "rows",
    [
        [*TWO, *replay(200, 1, "x", "y"), *replay(300, 2, "x", "y")],
        [*THREE, *replay(200, 1, "x", "y", "z")],
        [*THREE, *replay(200, 1, "x", "y"), *replay(300, 2, "x", "z")],
        [*replay(0, 1, "x", "y"), *[{**row, "ts": row["ts"] + 500} for row in THREE], *replay(800, 2, "x", "y")],
        [*THREE, *replay(200, 1, "x", "y", streams=(7, 8))],
        [*capture(0, "a", "b"), *capture(5, "c", first=200, tid=OTHER), *replay(200, 1, "x", "y")],
        [*replay(200, 1, "x", "y")],
    ],
    ids=["of-one-size", "of-another-size", "other-kernels", "before", "streams", "overlapping", "no-capture"],
)
def test_where_it_is_open_what_was_captured_a_node_belongs_to_its_replay(rows: list[Event], tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", *rows)
    trace = read_trace(path)
    assert (graph_replays(trace).captured == -1).all()
    assert graph_replays(trace).replayed.all()
    coverage = table(trace, "coverage")[0]
    assert coverage["uncaptured_ns"] == coverage["replay_ns"] == 5_000 * len(device_work(trace))
    assert replayed_ns(read(path)) == (coverage["replay_ns"], coverage["uncaptured_ns"])


def test_of_graphs_that_were_not_all_replayed_one_with_a_size_of_its_own_is_linked() -> None:
    assert ops(build(*THREE, *replay(200, 1, "x", "y"))) == ["aten::b", "aten::c"]


def test_a_launch_that_runs_during_a_capture_is_no_node() -> None:
    eager = [launch(8, 1, 9), kernel("eager", 9, 1, 9)]
    assert ops(build(*capture(0, "a"), *eager, *replay(100, 1, "x")))[1] == "aten::a"


def test_a_reader_sees_which_share_counts_to_what() -> None:
    marks = [step(0, 1000), annotation("step[DECODE bs=8]", 190, 40), annotation("step[DECODE bs=8]", 290, 40)]
    module = frame("nn.Module: Net_0", 190, 200)
    replays = [*replay(200, 1, "x", "y"), *replay(300, 2, "p", "q", "r")]

    def notes(*rows: Event) -> list[str]:
        run = Run("", (build(*marks, module, *replays, *rows),))
        return [analyze(run, name).views[0].note for name in ("inference", "modules")]

    one, other = capture(0, "a", "b"), capture(50, "c", "d", "e", first=200)
    for captured, state, counts_to in (
        ([], "CUDA graph", "of the replay."),
        (one, "no known capture", "of the replay."),
        ([*one, *other], "CUDA graph", "was captured."),
    ):
        assert all(state in note and note.endswith(counts_to) for note in notes(*captured))


@pytest.mark.parametrize(("eager_us", "share"), [(1, "83.3"), (1000, "")])
def test_a_note_says_so_where_it_is_much_of_the_time(eager_us: int, share: str) -> None:
    eager = [op("aten::mm", 0, 20), launch(5, 2, 9), kernel("eager", 20, eager_us, 9)]
    caveats = analyze(Run("", (build(*eager, *replay(1100, 1, "x")),)), "coverage").caveats
    texts = [caveat.text for caveat in caveats if caveat.code == "graph_replays"]
    assert [text.partition(" % of GPU time")[0] for text in texts] == ([share] if share else [])


def load(name: str) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress((INFERENCE / name).read_bytes()), parse_float=str))


def by_hand(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Kernels of replays by (replay, start), each with the kernel that ROCm notes for the k-th captured launch."""
    complete = [event for event in events if event.get("ph") == "X"]
    device = [event for event in complete if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    has_work = {event["args"]["correlation"] for event in device}
    captured, is_open = list[str](), False
    for event in sorted((e for e in complete if e["cat"] == "cuda_runtime"), key=lambda e: Decimal(e["ts"])):
        if event["name"] == "hipStreamBeginCapture":
            is_open = True
        elif event["name"] == "hipStreamEndCapture":
            is_open = False
        elif is_open and "kernel" in event["args"] and event["args"]["correlation"] not in has_work:
            captured.append(event["args"]["kernel"])
    replays = [event["args"]["correlation"] for event in complete if event["name"] == "hipGraphLaunch"]
    nodes = [event for event in device if event["args"]["correlation"] in replays]
    nodes.sort(key=lambda event: (event["args"]["correlation"], Decimal(event["ts"])))
    return [(event["name"], name) for event, name in zip(nodes, captured, strict=True)]


@pytest.mark.slow
@pytest.mark.skipif(not INFERENCE.is_dir(), reason=f"no {TRACES}")
def test_the_graphs_of_vllm_run_the_kernels_that_were_captured(tmp_path: Path) -> None:
    """VLLM's capture of 25 graphs and a step that replays them, recorded by one process in two files."""
    recorded, window = load("vllm-piecewise-mi300-capture.json.gz"), load("vllm-piecewise-mi300.json.gz")
    events = [*recorded["traceEvents"], *window["traceEvents"]]
    expected = by_hand(events)
    assert len(expected) == 361
    assert all(name == captured for name, captured in expected)  # ROCm notes the name, so the order is the right one
    path = tmp_path / "both.json"
    path.write_text(json.dumps({**window, "traceEvents": events}))
    trace = read_trace(path)
    (coverage,) = table(trace, "coverage")
    assert (coverage["replay_ns"], coverage["uncaptured_ns"]) == replayed_ns(read(path)) == (149_919_755, 0)
    replays, rows = graph_replays(trace), device_work(trace).rows
    assert int(replays.replayed.sum()) == int((replays.captured >= 0).sum()) == len(expected)
    launched = [event["args"]["kernel"] for event in events if "kernel" in event.get("args", {})]
    correlations = [event["args"]["correlation"] for event in events if "kernel" in event.get("args", {})]
    names = dict(zip(correlations, launched, strict=True))
    linked = zip(rows[replays.replayed].tolist(), replays.captured[replays.replayed].tolist(), strict=True)
    for row, captured in linked:
        assert trace.events.text(row) == names[int(trace.events.correlation[captured])]


@pytest.mark.slow
def test_a_compiled_model_runs_what_it_captured() -> None:
    """A graph of segment-anything that is captured and replayed in one window: kernels and ops name each other."""
    path = TRACES / "sam-a100-ab" / "compile_true.json.gz"
    if not path.exists():
        pytest.skip(f"no {TRACES}")
    trace = read_trace(path)
    kernels, work = launched_kernels(trace), device_work(trace)
    selected = graph_replays(trace).captured[kernels.work] >= 0
    assert int(selected.sum()) == int(graph_replays(trace).replayed.sum()) == 558
    names = [
        (trace.events.text(row), trace.events.text(of_op))
        for row, of_op in zip(work.rows[kernels.work[selected]].tolist(), kernels.op[selected].tolist(), strict=True)
    ]
    assert all(name.startswith("triton__") == of_op.startswith("triton_") for name, of_op in names)
    assert {of_op for name, of_op in names if name.startswith("fmha_")} == {"aten::_efficient_attention_forward"}
    products = {of_op for name, of_op in names if "s16816gemm" in name}
    assert products == {"aten::mm", "aten::addmm", "aten::cudnn_convolution"}


def test_a_host_that_captures_a_graph_is_no_host_to_make_faster() -> None:
    """The device waits 295 us for the host, most of it in a capture; without the capture, that is host-bound."""

    def finding(*captured: Event) -> dict[str, int]:
        rows = [step(0, 400), launch(1, 2, 1), kernel("first", 5, 15, 1), launch(310, 2, 2), kernel("last", 315, 80, 2)]
        report = analyze(Run("", (build(*rows, *captured),)), "partition")
        return {each.code: each.ns for each in report.findings}

    assert finding(*capture(30, *("mlp",) * 25)) == {"cold_start": 251_000, "host_bound": 44_000}
    assert finding(op("aten::mlp", 30, 250)) == {"host_bound": 295_000}
