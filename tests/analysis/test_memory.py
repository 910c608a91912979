"""Memory: peaks and growth by phase from `[memory]` rows, and an allocator that asks its driver again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from builder import Event, annotation, build, call, frame, kernel, launch, memory, op, step, table
from paths import TRACES

from traceq.analysis.memory import memory_use
from traceq.analysis.registry import analyze
from traceq.claims.claim import Claim
from traceq.model import Arm, Manifest, Run, Timings, Trace
from traceq.runs.read import read
from traceq.runs.step_log import StepLine, timings_of

TWO_PHASES = [
    step(0, 100),
    annotation("fwd", 0, 50),
    annotation("bwd", 50, 50),
    frame("model.py(12): forward", 8, 20),
    op("aten::mm", 9, 10),
    memory(5, 100, 1100, 2048),
    memory(10, 400, 1500, 2048),
    memory(40, -100, 1400, 2048),
    memory(60, 50, 1450, 2048),
    memory(90, -450, 1000, 2048),
    memory(7, 8, 8, 0, device_type=0),
]


def findings(trace: Trace, analysis: str = "memory") -> list[str]:
    return [result.code for result in analyze(Run("", (trace,)), analysis).findings]


def test_growth_of_the_phases_adds_up_and_peaks_are_reached_inside_them() -> None:
    rows = [
        (row["device"], row["phase"], row["num"], row["allocated_bytes"], row["freed_bytes"], row["growth_bytes"])
        for row in table(build(*TWO_PHASES), "memory")
    ]
    assert rows == [
        ("cuda:0", "fwd", 3, 500, 100, 400),
        ("cuda:0", "bwd", 2, 50, 450, -400),
        ("cpu", "fwd", 1, 8, 0, 8),
    ]
    assert [row["peak_bytes"] for row in table(build(*TWO_PHASES), "memory")] == [1500, 1450, 8]


def test_the_peak_has_its_step_phase_op_and_line() -> None:
    peaks = analyze(Run("", (build(*TWO_PHASES),)), "memory").tables[1]
    result = dict(zip((column.key for column in peaks.columns), peaks.rows[0], strict=True))
    assert result == {
        "rank": 0,
        "device": "cuda:0",
        "absolute": True,
        "start_bytes": 1000,
        "end_bytes": 1000,
        "peak_bytes": 1500,
        "reserved_bytes": 2048,
        "step": "ProfilerStep#0",
        "phase": "fwd",
        "op": "aten::mm",
        "line": "model.py:12 forward",
    }


def test_a_peak_that_a_free_shows_belongs_to_what_came_before() -> None:
    trace = build(step(0, 100), op("aten::mm", 4, 4), memory(5, 8, 64, 0), op("aten::add", 9, 4), memory(10, -64, 0, 0))
    assert analyze(Run("", (trace,)), "memory").tables[1].rows[0][9] == "aten::mm"


def test_levels_of_2021_count_from_the_start_of_the_trace() -> None:
    early = [memory(index, change, 0, 0) for index, change in ((1, 10), (2, 30), (3, -10))]
    for row in early:
        del row["args"]["Total Allocated"], row["args"]["Total Reserved"]
    report = analyze(Run("", (build(step(0, 10), *early),)), "memory")
    assert report.tables[1].rows[0][2:7] == (False, 0, 30, 40, None)
    assert "Levels count from the start" in report.views[0].note


def retry(name: str, start: int) -> list[Event]:
    """Two steps; in the second the device idles from 140 to 180, 20 of them in a call of the allocator."""
    return [
        step(0, 100, 0),
        step(100, 100, 1),
        launch(1, 2, 1),
        kernel("a", 5, 94, 1),
        launch(101, 2, 2),
        kernel("a", 105, 35, 2),
        call(name, start, 20),
        launch(178, 1, 3),
        kernel("a", 180, 15, 3),
    ]


def test_memory_that_goes_back_to_the_driver_within_a_step_is_a_finding() -> None:
    report = analyze(Run("", (build(*retry("cudaFree", 150)),)), "memory")
    (result,) = report.findings
    assert (result.code, result.ns) == ("allocator_retries", 10_000)
    assert [result.measures[name] for name in ("num_frees", "num_steps_with", "num_counted")] == [1, 1, 2]
    assert (result.gain, result.severity) == ((0, 0), "low")  # of one step alone it is no promise


@pytest.mark.parametrize(("name", "start"), [("cudaMalloc", 150), ("cudaFree", 250)])
def test_a_first_allocation_and_a_free_after_the_steps_are_none(name: str, start: int) -> None:
    assert findings(build(*retry(name, start))) == []


def test_without_memory_rows_the_report_says_what_would_record_them() -> None:
    report = analyze(Run("", (build(step(0, 10)),)), "memory")
    assert report.views == ()
    assert [unknown.argument for unknown in report.unknown] == ["profile_memory=True"]


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces")
@pytest.mark.parametrize("name", ["h100", "mi300"])
def test_every_change_of_a_real_device_is_the_difference_of_its_levels(name: str) -> None:
    accelerator = memory_use(read(TRACES / f"owlv2/{name}.json.gz").traces[0])[0]
    assert len(accelerator.ts) > 10_000
    assert (np.diff(accelerator.level) == accelerator.change[1:]).all()
    assert (accelerator.reserved >= accelerator.level).all()


def test_growth_of_a_phase_is_what_torch_counts_for_its_range(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    kept = []
    model, data = torch.nn.Linear(64, 64), torch.randn(16, 64)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        for _ in range(2):
            with torch.profiler.record_function("fwd"):
                loss = model(data).relu().sum()
                kept.append(loss.detach() + torch.ones(100))
            with torch.profiler.record_function("bwd"):
                loss.backward()
            profile.step()
    profile.export_chrome_trace(str(tmp_path / "rank0.json"))
    wanted = {row.key: row.cpu_memory_usage for row in profile.key_averages() if row.key == "fwd"}
    trace = read(tmp_path / "rank0.json").traces[0]
    rows = table(trace, "memory")
    assert {row["phase"]: row["growth_bytes"] for row in rows if row["phase"] == "fwd"} == wanted
    events = json.loads((tmp_path / "rank0.json").read_text())["traceEvents"]
    reported = [event["args"] for event in events if event["name"] == "[memory]" and event["args"]["Device Type"] == 0]
    assert sum(row["growth_bytes"] for row in rows) == sum(event["Bytes"] for event in reported)
    assert max(row["peak_bytes"] for row in rows) == max(event["Total Allocated"] for event in reported)


GROWING = {"memory_before_bytes": 4000, "memory_after_bytes": 5000, "kept_bytes": 100, "kept_line": "train.py:7 main"}


def growth(*more_arms: Arm, **changed: int) -> list[Claim]:
    """The claims on 10 unprofiled steps of a recording with these facts."""
    arms = (Arm("run", "", baseline=True), *more_arms)
    manifest = Manifest(1, "run", "", "", {}, arms, (), num_ranks=1, seed=0, environment=GROWING | changed)
    run = Run("run", (build(step(0, 100)),), manifest, "run", timings=timings_of_steps(10))
    return [finding for finding in analyze(run, "memory").findings if finding.code == "memory_growth"]


def timings_of_steps(num: int) -> Timings:
    lines = [StepLine("run", "run", "run", pair, 0, 0, {}, 1000, 0, 0, 0) for pair in range(num)]
    timings = timings_of([lines], "run")
    assert timings is not None
    return timings


def test_memory_that_grows_by_what_each_step_keeps_is_a_finding() -> None:
    (claim,) = growth()
    assert (claim.measures["step_bytes"], claim.subject.line) == (100, "train.py:7 main")


def test_which_of_several_arms_makes_memory_grow_is_not_known() -> None:
    assert growth(Arm("off", "")) == []


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"kept_bytes": 0}, id="no tensor stays"),
        pytest.param({"kept_bytes": 300}, id="steps free it later"),
        pytest.param({"memory_after_bytes": 4300, "kept_bytes": 30}, id="little"),
        pytest.param({"memory_before_bytes": 0}, id="not recorded"),
    ],
)
def test_memory_that_grows_otherwise_or_little_is_none(changed: dict[str, int]) -> None:
    assert growth(**changed) == []


@pytest.mark.parametrize("is_asked", [False, True])
def test_memory_that_the_profiler_was_asked_for_is_not_asked_for_again(is_asked: bool) -> None:
    trace = build(step(0, 100), op("aten::mm", 9, 10), profile_memory=int(is_asked))
    assert bool(analyze(Run("", (trace,)), "memory").unknown) != is_asked
