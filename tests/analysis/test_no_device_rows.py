"""Traces of one side alone: said once, and nothing claimed that only the other side could tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import (
    AUTOGRAD,
    MAIN,
    Event,
    annotation,
    build,
    call,
    frame,
    kernel,
    launch,
    memory,
    op,
    row,
    step,
    table,
    world,
    write,
)
from typer.testing import CliRunner

from traceq.analysis.registry import analyze, sheet
from traceq.claims.claim import Claim, Subject
from traceq.cli import app
from traceq.compare.diff import diff_runs
from traceq.facts.events.device_work import lacks_device_rows
from traceq.model import Run
from traceq.runs.read import read

READS = [op("aten::item", 10, 20), op("aten::_local_scalar_dense", 12, 15)]
NOTE = "the profiler recorded no device activity"


def shown(folder: Path, *events: Event, ranks: int = 1) -> tuple[str, str]:
    for rank in range(ranks):
        write(folder / f"rank{rank}.json", step(0, 100), *READS, *events, **world(rank, ranks, ""))
    result = CliRunner().invoke(app, ["show", str(folder), "--only", "syncs", "--only", "coverage"])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


@pytest.mark.parametrize(
    "sign", [launch(50, 4, 1), annotation("nccl:all_reduce", 50, 4), op("aten::cudnn_convolution", 50, 4)]
)
def test_it_is_said_once_for_all_ranks(sign: Event, tmp_path: Path) -> None:
    text, notes = shown(tmp_path, sign, ranks=3)
    assert notes.count(NOTE) == 1
    assert "cpu" not in text.splitlines()[0]
    assert "without device rows" in text
    assert "harmless" not in text
    assert "saves" not in text


def test_counters_of_kernels_are_told_from_a_profiler_that_missed_the_device(tmp_path: Path) -> None:
    """CUPTI's range profiler runs each kernel by itself, in several passes: its launch takes as long."""
    _, notes = shown(tmp_path, launch(50, 40, 1), row("cuda_profiler_range", "gemm", 50, 40, tid=7))
    assert f"{NOTE} (it measured counters" in notes


def test_a_call_that_starts_a_collective_is_an_op_and_no_exposed_communication() -> None:
    call = [op("c10d::allreduce_", 40, 20), annotation("nccl:all_reduce", 45, 10)]
    assert cells(*call) == {"cpu_compute": 40_000, "python": 60_000}
    of_gloo = [op("c10d::allreduce_", 40, 20), annotation("gloo:all_reduce", 45, 10)]
    assert cells(*of_gloo) == {"cpu_compute": 20_000, "exposed_comm": 10_000, "python": 70_000}


ON_DEVICE = annotation("nccl:all_reduce", 5, 1)
COPIED = op("aten::to", 92, 6), call("cudaMemcpyAsync", 93, 4, 7)
BACKWARD = [annotation("fwd", 0, 40), annotation("backward", 40, 60), op("torch::autograd::AccumulateGrad", 90, 5)]


def test_a_main_thread_that_waits_for_an_autograd_thread_without_rows_is_not_in_python() -> None:
    """Of the 60 of backward it is in an op for 5, of the 40 of forward for 20."""
    assert cells(ON_DEVICE, *BACKWARD) == {"cpu_compute": 25_000, "python": 20_000, "unrecorded": 55_000}
    path = table(build(step(0, 100), ON_DEVICE, *BACKWARD), "critical")
    in_backward = {row["kind"]: row["dur_ns"] for row in path if row["phase"] == "backward"}
    assert in_backward == {"unrecorded": 55_000, "host op": 5_000}


@pytest.mark.parametrize(
    ("more", "python_ns"),
    [
        ([], 75_000),
        ([ON_DEVICE, op("AddmmBackward0", 50, 10, tid=AUTOGRAD)], 75_000),
        ([ON_DEVICE, op("autograd::engine::evaluate_function: MulBackward0", 50, 10)], 65_000),
        ([ON_DEVICE, op("aten::mm", 50, 10, tid=AUTOGRAD, **{"Fwd thread id": 1})], 75_000),
        ([ON_DEVICE, frame("train.py(7): main", 0, 100)], 75_000),
    ],
    ids=["no device", "another thread", "the main thread", "ops of another thread", "stacks"],
)
def test_a_thread_that_runs_backward_stacks_or_a_cpu_tell_what_the_main_thread_does(
    more: list[Event], python_ns: int
) -> None:
    assert cells(*BACKWARD, *more).get("python") == python_ns
    assert "unrecorded" not in cells(*BACKWARD, *more)


def cells(*events: Event) -> dict[str, int]:
    """The step by category; the events take 20 us beside the 20 us of READS."""
    sums: dict[str, int] = {}
    for cell in table(build(step(0, 100), *READS, *events), "partition"):
        sums[cell["category"]] = sums.get(cell["category"], 0) + cell["dur_ns"]
    return sums


def host_op(*events: Event) -> Claim | None:
    claims = analyze(Run("", (build(step(0, 100), ON_DEVICE, *events),)), "partition").findings
    return next((each for each in claims if each.code == "host_op"), None)


@pytest.mark.parametrize(
    ("events", "op_", "ns", "remedy"),
    [
        (
            [op("aten::randn", 10, 80), op("aten::normal_", 15, 30), op("aten::normal_", 50, 30)],
            "aten::normal_",
            60_000,
            "",
        ),
        ([op("aten::normal_", 10, 80), *COPIED], "aten::normal_", 80_000, "on_device"),
        ([op("aten::normal_", 10, 80), call("cudaLaunchKernel", 20, 5, 8), *COPIED], "aten::normal_", 75_000, ""),
        (
            [op("aten::item", 10, 75), *(call("cudaStreamSynchronize", *part) for part in ((10, 5), (20, 60)))],
            "cudaStreamSynchronize",
            65_000,
            "",
        ),
    ],
)
def test_an_op_with_half_of_the_time_of_the_host_is_told_without_a_claim_on_the_device(
    events: list[Event], op_: str, ns: int, remedy: str
) -> None:
    claim = host_op(frame("train.py(7): noise", 10, 80), *events)
    assert claim is not None
    assert (claim.subject, claim.ns, claim.remedy) == (Subject(op=op_, line="train.py:7 noise"), ns, remedy)
    assert (claim.measures["share_pct"], claim.gain) == (ns / 1000, None)


def test_a_host_that_is_in_no_op_for_half_of_the_time_has_no_such_claim() -> None:
    assert host_op(op("aten::normal_", 10, 40), op("aten::mm", 50, 45)) is None


def test_where_the_rows_of_one_rank_alone_are_missing_nothing_is_told_of_its_host() -> None:
    lost = build(step(0, 100), ON_DEVICE, op("aten::normal_", 10, 80), recorded={"rank": 0})
    whole = build(
        step(0, 100), launch(5, 2, 1), kernel("gemm", 8, 50, 1), op("aten::normal_", 10, 80), recorded={"rank": 1}
    )
    codes = [each.code for each in analyze(Run("", (lost, whole)), "partition").findings]
    assert "host_op" not in codes


def test_a_job_without_a_device_is_no_such_job(tmp_path: Path) -> None:
    text, notes = shown(tmp_path, annotation("gloo:all_reduce", 50, 4))
    assert NOTE not in notes
    assert " · cpu · " in text.splitlines()[0]
    assert "a device-to-host sync" in text


@pytest.mark.parametrize(
    ("name", "is_lost"),
    [
        ("cudaGetDeviceCount", False),
        ("cudaStreamIsCapturing", False),
        ("cudaMalloc", False),
        ("cudaDeviceSynchronize", False),
        ("cudaLaunchKernel", True),
        ("cuLaunchKernelEx", True),
        ("hipMemcpyWithStream", True),
        ("cudaMemsetAsync", True),
        ("hipGraphLaunch", True),
        ("urEnqueueUSMMemcpy", True),
        ("zeCommandListAppendLaunchKernel", True),
        ("runFunction - job_prep_and_submit_for_execution", True),
    ],
)
def test_only_calls_that_ask_a_device_for_work_tell_that_its_rows_are_missing(
    name: str, is_lost: bool, tmp_path: Path
) -> None:
    """A model on a CPU queries the devices of its machine, too, and a profiler synchronises with them."""
    text, notes = shown(tmp_path, call(name, 50, 4, 1))
    assert (NOTE in notes) == is_lost
    assert ("no kernels recorded" in text.splitlines()[0]) == is_lost
    assert (" · cpu · " in text.splitlines()[0]) != is_lost


def test_a_diff_says_on_which_side_the_rows_of_the_device_are_missing() -> None:
    of_cpu, lost = (Run("", (build(step(0, 100), *READS, *more),)) for more in ([], [launch(50, 4, 1)]))
    notes = [each.text for each in diff_runs(of_cpu, lost).caveats if each.code == "no_device_work"]
    (note,) = notes
    assert note.startswith(f"B: {NOTE}")
    assert not [each for each in diff_runs(of_cpu, of_cpu).caveats if each.code == "no_device_work"]


def test_without_host_ops_phases_are_not_known() -> None:
    bare = [launch(10, 5, 1), kernel("batch_norm_backward", 20, 30, 1)]
    (caveat,) = analyze(Run("", (build(*bare),)), "coverage").caveats
    assert caveat.code == "no_host_ops"
    assert {row["phase"] for row in table(build(*bare), "partition")} == {"other"}
    assert analyze(Run("", (build(op("aten::mm", 5, 20), *bare),)), "coverage").caveats == ()


def test_a_trace_of_another_program_says_so() -> None:
    other = {"ph": "X", "name": "cuMemAlloc_v2", "pid": 1, "tid": 1, "ts": 0, "dur": 5}
    foreign, mixed = (Run("", (build(other, *more),)) for more in ([], [op("aten::mm", 10, 5)]))
    report = sheet(foreign)
    (lead,) = report.top_findings
    assert lead.code == "foreign_trace"
    assert not {"partition", "idle"} & {view.key for each in report.reports for view in each.views}
    assert (report.source.device, report.unknown, report.all_caveats[1:]) == ("", (), ())
    assert {row["phase"] for row in table(foreign.traces[0], "partition")} == {"other"}
    assert not analyze(mixed, "coverage").findings
    assert len(diff_runs(mixed, foreign).comparable.reasons) == 1


@pytest.mark.parametrize(
    ("process", "cat", "device"),
    [
        ("Ascend Hardware", "", "Ascend NPU"),
        ("IBM AIU 0", "", "IBM AIU"),
        ("python", "hpu_stream", "hpu"),
        ("python", "xpu_engine", "xpu"),
    ],
)
def test_a_device_whose_rows_are_not_read_is_named(process: str, cat: str, device: str, tmp_path: Path) -> None:
    name = {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": process}}
    rows = [name, op("aten::mm", 0, 40), row(cat, "MatMul", 50, 30, tid=9)]
    run = read(write(tmp_path / "trace.json", *rows))
    assert (sheet(run).source.device, sheet(run).source.lacks_device_rows) == (device, True)
    assert [device in each.text for each in analyze(run, "coverage").caveats if each.code == "no_device_work"] == [True]


def test_memory_of_a_device_tells_that_there_is_one() -> None:
    assert lacks_device_rows(build(op("aten::mm", 0, 40), memory(5, 512, 512, 1024)))
    assert not lacks_device_rows(build(op("aten::mm", 0, 40), memory(5, 512, 512, 0, device_type=0)))


@pytest.mark.parametrize("thread", [MAIN, AUTOGRAD])
def test_a_backward_on_a_thread_of_its_own_is_that_of_a_device(thread: int) -> None:
    """The profiler records nothing of MPS: 55.6 ms of waits for it were reads of values on a CPU."""
    node = op("autograd::engine::evaluate_function: MmBackward0", 50, 20, tid=thread), op("aten::mm", 52, 9, tid=thread)
    trace = build(op("aten::mm", 0, 40), *node)
    assert lacks_device_rows(trace) == (thread == AUTOGRAD)
    of_category = {row["category"]: row["dur_ns"] for row in table(trace, "partition") if row["phase"] == "backward"}
    assert of_category["cpu_compute"] == 20_000


@pytest.mark.parametrize("process", ["python", "input server", "worker"])
def test_a_process_of_another_name_is_no_device(process: str, tmp_path: Path) -> None:
    name = {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": process}}
    every = sheet(read(write(tmp_path / "trace.json", name, op("aten::mm", 0, 40))))
    assert (every.source.device, every.source.lacks_device_rows) == ("cpu", False)


@pytest.mark.parametrize("works", [False, True])
def test_a_recording_of_the_profiler_alone_is_empty(works: bool) -> None:
    """A job stepped its profiler once per epoch: all of the 0.62 ms were told as Python of its `main`."""
    main, thread = frame("train.py(177): main", 0, 600), frame("threading.py(355): wait", 0, 600, tid=AUTOGRAD)
    begins = frame("torch/profiler/profiler.py(821): step", 2, 400), frame("json/__init__.py(183): dumps", 200, 30)
    ends = frame("torch/profiler/profiler.py(792): __exit__", 480, 100), frame("<built-in function f>", 500, 50)
    loads = [frame("data.py(7): __next__", 420, 20)] * works
    run = Run("", (build(step(410, 60), main, thread, *begins, *ends, *loads),))
    findings = analyze(run, "coverage").findings
    assert [each.code for each in findings] == ["empty_recording"] * (not works)
    assert bool(analyze(run, "lines").views) == works
