"""Work that the trace does not show is not called idle: what counts as such, and what does not."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from builder import Event, build, call, kernel, launch, memcpy, op, step, table, write
from catalogue import FILES
from hypothesis import given
from hypothesis import strategies as st
from oracle.reader import read as read_slowly
from oracle.unrecorded import gaps

from traceq.analysis.registry import analyze
from traceq.compare.attribution import accounts
from traceq.compare.diff import diff
from traceq.facts.events.unrecorded_work import unrecorded_work
from traceq.facts.stalls.idle_time import lost_once
from traceq.facts.timeline.once import OnceKind
from traceq.facts.timeline.steps import steps
from traceq.kineto.read import read_trace
from traceq.model import Run, Trace


def us(trace: Trace) -> list[list[int]]:
    return [[start // 1000, end // 1000] for start, end in unrecorded_work(trace).tolist()]


def run_of(delay: int, num: int = 20, *, corr: int = 0, start: int = 0) -> list[Event]:
    """Launches every 10 us, whose kernels run from `start` + `delay` on."""
    rows: list[Event] = []
    for number in range(num):
        rows += [
            launch(start + 10 * number, 4, corr + number + 1),
            kernel("gemm", start + delay + 20 * number, 18, corr + number + 1),
        ]
    return rows


def test_a_launch_that_waits_for_nothing_recorded_waits_for_unrecorded_work() -> None:
    assert us(build(*run_of(1000))) == [[4, 1000]]


@pytest.mark.parametrize(("num_rows", "warns"), [(300, False), (200, True)])
def test_launches_without_a_row_of_the_device_are_told(num_rows: int, warns: bool) -> None:
    """Of 1,556 launches 633 had one, and the time of the device was told as if that were all."""
    launches = [launch(20 * number, 5, number + 1) for number in range(300)]
    kernels = [kernel("add", 20 * number + 8, 5, number + 1) for number in range(num_rows)]
    caveats = analyze(Run("", (build(op("aten::add", 0, 6_000), *launches, *kernels),)), "coverage").caveats
    assert any(caveat.text.startswith("100 of 300 ") for caveat in caveats) == warns


@pytest.mark.parametrize(("took_us", "expected"), [(3_000, []), (10, [[1_010, 6_000]])])
def test_the_device_that_loads_a_kernel_after_its_launch_has_returned_loads_it_once(
    took_us: int, expected: list[list[int]]
) -> None:
    """The calls of five first launches took 2 to 24 ms, and their kernels began 1.7 to 2.4 ms after these."""
    first = launch(1_000, took_us, 100), kernel("new", 6_000, 5, 100)
    again = [
        row for n in range(1, 5) for row in (launch(7_000 + n, 1, 100 + n), kernel("new", 7_100 + 9 * n, 5, 100 + n))
    ]
    trace = build(step(0, 8_000), *run_of(10), *first, *again)
    assert us(trace) == expected
    lost = [(each.kind, each.name, each.ns) for each in lost_once(trace)]
    assert lost == ([] if expected else [(OnceKind.KERNEL_LOADING, "cudaLaunchKernel", 5_000_000)])


def test_the_first_work_of_a_trace_may_be_that_of_a_kernel_that_is_loaded() -> None:
    """A launch of 21 ms was followed by 4 ms without work, while the host soon waited: as much a cold start."""
    first = launch(0, 3_000, 100), kernel("new", 7_000, 5, 100), call("cudaStreamSynchronize", 4_000, 3_010, 99)
    trace = build(*first, *run_of(10, corr=100, start=8_000))
    assert us(trace) == []
    lost = [(each.kind, each.name, each.ns) for each in lost_once(trace)]
    assert lost == [(OnceKind.KERNEL_LOADING, "cudaLaunchKernel", 7_000_000)]


def test_usual_launch_latency_is_none() -> None:
    assert us(build(*run_of(90))) == []


def test_a_slow_device_sets_the_measure_for_its_launches() -> None:
    slow = [
        row
        for number in range(8)
        for row in (launch(1000 * number, 4, number + 1), kernel("gemm", 1000 * number + 400, 50, number + 1))
    ]
    assert us(build(*slow)) == []


def test_recorded_work_in_between_is_a_reason() -> None:
    rows = [launch(0, 4, 1), kernel("gemm", 6, 3000, 1), launch(10, 4, 2), kernel("gemm", 3008, 10, 2)]
    assert us(build(*rows)) == []


def test_work_behind_another_stream_is_found_although_the_next_work_was_launched_late() -> None:
    rows = [
        launch(0, 4, 1),
        launch(2990, 4, 2),
        kernel("gemm", 3000, 10, 2, stream=8),
        kernel("gemm", 3005, 10, 1, stream=7),
    ]
    assert us(build(*rows)) == [[4, 3000]]


@pytest.mark.parametrize("gate", ["cudaLaunchHostFunc", "cuStreamWaitValue32_v2"])
def test_a_stream_that_waits_for_the_host_or_for_others_is_a_recorded_reason(gate: str) -> None:
    assert us(build(call(gate, 2, 1, 99), *run_of(1000, start=5))) == []
    assert us(build(*run_of(1000), call(gate, 1500, 1, 99))) == [[4, 1000]]


@pytest.mark.parametrize(
    ("waiting", "until"),
    [
        ([call("cudaStreamSynchronize", 0, 900, 50)], 900),
        ([call("cudaMemcpyAsync", 0, 1005, 50), memcpy("DtoH (Device -> Pageable)", 995, 5, 50)], 995),
    ],
)
def test_before_the_first_work_a_host_that_waits_for_the_device_shows_it(waiting: list[Event], until: int) -> None:
    assert us(build(*waiting, *run_of(6, start=1010))) == [[0, until]]


def test_an_allocation_before_the_first_work_shows_nothing() -> None:
    assert us(build(call("cudaMalloc", 0, 900, 50), *run_of(6, start=1010))) == []


def test_steps_begin_after_the_unrecorded_work_with_which_a_trace_opens() -> None:
    trace = build(op("aten::mm", 0, 2), *run_of(1000))
    assert steps(trace).window.tolist() == [[1_000_000, 1_398_000]]
    assert steps(trace).host.tolist() == [[0, 1_398_000]]
    rows = table(trace, "partition")
    assert {row["category"]: row["dur_ns"] for row in rows} == {"compute": 360_000, "launch_latency": 38_000}
    assert [row["unrecorded_ns"] for row in table(trace, "coverage")] == [1_000_000]


def test_a_host_that_works_before_its_first_kernel_is_in_the_window_though_that_kernel_is_late() -> None:
    trace = build(op("aten::conv2d", 0, 4100), *run_of(500, start=4000))
    assert us(trace) == [[4004, 4500]]
    assert steps(trace).window.tolist() == [[0, 4_898_000]]


def test_a_process_that_starts_its_device_in_the_trace_has_launched_nothing_before() -> None:
    """The first kernel starts 4 ms late, but there was no device before: the trace begins with its start of 200 ms."""
    rows = run_of(4000, start=200_000)
    trace = build(op("aten::rand", 0, 199_000), call("cudaDeviceGetStreamPriorityRange", 5, 190_000), *rows)
    assert us(trace) == [[200_004, 204_000]]
    assert steps(trace).window.tolist() == [[0, 204_398_000]]
    assert steps(trace).opens_ns is None


def test_a_single_step_of_a_device_that_is_behind_follows_the_device() -> None:
    trace = build(step(0, 250), *run_of(1000))
    assert steps(trace).window.tolist() == [[1_000_000, 1_398_000]]
    assert steps(trace).by_device
    assert not steps(trace).partial.any()


def test_a_gap_within_a_step_is_a_cell_of_its_own() -> None:
    trace = build(step(0, 4000), *run_of(6), *run_of(2000, corr=100, start=1000))
    cells = {(row["phase"], row["category"]): row["dur_ns"] for row in table(trace, "partition")}
    assert cells["unattributed", "unrecorded"] == 1_996_000
    assert sum(cells.values()) == 4_000_000
    assert all(row["dur_ns"] < 1_000_000 for row in table(trace, "idle") if row["cause"] == "launch queue")


def test_it_costs_a_sync_nothing_and_is_on_no_path() -> None:
    trace = build(call("cudaStreamSynchronize", 300, 1099, 77), *run_of(1000))
    report = analyze(Run("", (trace,)), "syncs")
    assert sum(finding.ns for finding in report.findings) <= 1_000  # its return, 1 us after the last kernel
    assert all(row["dur_ns"] <= 38_000 for row in table(trace, "critical") if row["kind"] != "kernel")


def test_a_diff_charges_a_sync_no_more_than_it_blocks_for_recorded_work() -> None:
    """It blocks from 10 to 2,040, until 2,000 for unrecorded work; an op of 95 comes before the next launch."""
    copy = call("cudaMemcpyAsync", 10, 2030, 2), memcpy("DtoH (Device -> Pageable)", 2019, 2, 2)
    rows = [launch(0, 4, 1), kernel("gemm", 2000, 18, 1), *copy]
    trace = build(*rows, op("aten::mm", 2045, 95), launch(2120, 4, 3), kernel("mm", 2130, 100, 3))
    charged = accounts(trace)
    assert {(label.kind, int(ns)) for label, (ns,) in zip(charged.labels, charged.ns, strict=True)} >= {
        ("sync", 40_000),
        ("host", 65_000),
    }


def test_no_delta_includes_it(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", *run_of(10), origin=7)
    b = write(tmp_path / "b.json", *run_of(5000), origin=7)
    outcome = diff(str(a), str(b))
    assert outcome.traced is not None
    assert abs(outcome.traced.delta_ns) <= 10_000
    assert sum(cell.delta_ns for cell in outcome.cells) == outcome.traced.delta_ns
    assert sum(cause.delta_ns for cause in outcome.causes) == outcome.traced.delta_ns
    assert [caveat.text[:2] for caveat in outcome.caveats if caveat.code == "unrecorded"] == ["B:"]


@given(
    st.lists(
        st.tuples(st.integers(0, 3000), st.integers(1, 600), st.integers(0, 3000), st.integers(7, 8), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_the_slow_oracle_agrees(made: list[tuple[int, int, int, int, bool]]) -> None:
    rows: list[Event] = []
    for number, (begin, dur, delay, stream, waits) in enumerate(made):
        rows += [launch(begin, 4, number + 1), kernel("gemm", begin + delay, dur, number + 1, stream=stream)]
        if waits:
            rows.append(call("cudaDeviceSynchronize", begin + 5, delay, 100 + number))
    with TemporaryDirectory() as folder:
        path = write(Path(folder) / "trace.json", *rows)
        assert [tuple(span) for span in unrecorded_work(read_trace(path)).tolist()] == gaps(read_slowly(path))


SHOWS_ALL = ("nanogpt", "resnet50-2021", "sam-a100", "ep-moe", "ddp-a100", "owlv2", "dlrm", "qwen", "hta-diff")


@pytest.mark.parametrize("path", FILES)
def test_real_traces_that_show_all_their_work_have_none(path: Path) -> None:
    if not any(name in str(path) for name in SHOWS_ALL):
        pytest.skip("not all work is recorded")
    assert len(unrecorded_work(read_trace(path))) == 0
