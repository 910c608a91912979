"""Tiny kernels, kernels that repeat, and a device that waits for launches."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import Event, annotation, build, call, frame, kernel, launch, memcpy, op, step, table
from paths import TRACES

from traceq.analysis.duplicates import OTHERS
from traceq.analysis.registry import analyze
from traceq.claims.claim import Claim
from traceq.facts.events.copies import host_copies
from traceq.facts.events.kernels import launched_kernels
from traceq.model import Run, Trace
from traceq.runs.read import read


def findings(trace: Trace) -> list[tuple[str, int]]:
    return [(finding.code, finding.ns) for finding in analyze(Run("", (trace,)), "launches").findings]


def claim(*events: Event) -> Claim:
    (only,) = analyze(Run("", (build(*events),)), "launches").findings
    return only


def test_a_kernel_is_tiny_under_10_us_or_if_its_own_launch_took_longer() -> None:
    trace = build(
        step(0, 200),
        launch(1, 2, 1),
        kernel("short", 5, 9.999, 1),
        launch(20, 2, 2),
        kernel("long", 25, 10, 2),
        launch(40, 20, 3),
        kernel("shorter than its launch", 61, 19, 3),
        call("cudaGraphLaunch", 90, 20, 4),
        kernel("of a graph", 112, 12, 4),
        kernel("of a graph", 130, 12, 4),
        kernel("nobody's", 150, 12, 99),
        launch(170, 20, 5),
        kernel("its launch waits for it", 175, 14, 5),
    )
    kernels = launched_kernels(trace)
    assert kernels.tiny.tolist() == [True, False, True, False, False, False, False]


@pytest.mark.parametrize(("num_waited", "is_tiny"), [(1, True), (2, False)])
def test_where_most_launches_wait_for_their_kernels_all_do(num_waited: int, is_tiny: bool) -> None:
    """Of three launches of 30 the last is over 3 before its kernel, by the clock of the device."""
    ends = [30 if n < num_waited else 33 for n in range(3)]
    events = (
        row
        for n, end in enumerate(ends)
        for row in (launch(100 * n, 30, n + 1), kernel("gemm", 100 * n + end - 12, 12, n + 1))
    )
    assert launched_kernels(build(step(0, 300), *events)).tiny[2] == is_tiny


def test_a_kernel_that_begins_before_its_launch_tells_nothing_of_who_waits() -> None:
    """The device's clock is 25 us early: 89.8 % of the kernels were said to be tiny, of which 98.3 % are."""
    early = [
        row for n in range(3) for row in (launch(100 * n + 50, 30, n + 1), kernel("gemm", 100 * n + 40, 12, n + 1))
    ]
    assert launched_kernels(build(step(0, 400), *early)).tiny.all()


def steady(gap: float, dur: float = 8) -> list[Event]:
    """A step of ten kernels, `gap` us apart: each is launched when the one before has long ended."""
    rows = [step(0, 10 * (dur + gap))]
    for n in range(10):
        start = n * (dur + gap) + gap
        rows += [op("aten::add", start - 4, 3), launch(start - 3, 2, n + 1), kernel("add", start, dur, n + 1)]
    return rows


def test_the_launch_bound_share_of_a_phase_is_that_of_its_time() -> None:
    (row,) = [row for row in table(build(*steady(20)), "launches") if row["phase"] == "forward"]
    assert (row["num_kernels"], row["num_tiny"], row["tiny_gpu_ns"], row["window_ns"]) == (10, 10, 80_000, 280_000)
    assert row["host_bound_ns"] == 10 * 19_000  # a launch returns 1 us before its kernel begins
    assert row["launch_bound_pct"] == pytest.approx(100 * 190 / 280, abs=0.001)


def test_many_short_gaps_between_tiny_kernels_are_launch_bound() -> None:
    assert findings(build(*steady(20))) == [("launch_bound", 190_000)]


def test_gaps_in_the_data_loader_are_not_for_launches() -> None:
    """Ten of the gaps' 19 us are in the loader; of nine of them nearly all."""

    def loads(first: float, us: float) -> list[Event]:
        return [annotation("enumerate(DataLoader)#_Iter.__next__", 28 * n + first, us) for n in range(10)]

    assert findings(build(*steady(20), *loads(2, 10))) == [("launch_bound", 90_000)]
    assert findings(build(*steady(20), *loads(0.5, 17.5))) == []


def test_the_line_of_a_launch_bound_step_is_that_of_the_launches_it_waits_for() -> None:
    """Most of the tiny kernels are of one line, and run back to back; the device waits for the three of another."""
    rows = [step(0, 280), frame("model.py(7): forward", 0, 150), frame("train.py(9): step", 150, 130)]
    starts = 40, 90, 140, *range(152, 264, 8)
    for n, start in enumerate(starts):
        begin = start - 3 if n < 3 else 150.2 + 0.1 * n
        rows += [launch(begin, 0.05, n + 1), kernel("add", start, 8, n + 1)]
    assert claim(*rows).subject.line == "model.py:7 forward"


def test_one_launch_bound_step_of_three_is_no_finding() -> None:
    """The mean over the steps is the same 45 % of a step."""

    def after(start: int, number: int, rows: list[Event]) -> list[Event]:
        moved = [row | {"ts": row["ts"] + start} for row in rows[1:]]
        numbered = [
            row | {"args": row["args"] | {"correlation": row["args"]["correlation"] + 100 * number}}
            if "correlation" in row.get("args", {})
            else row
            for row in moved
        ]
        return [step(start, 280, number), *numbered]

    quick, slow = steady(0.5, dur=27.5), steady(20)
    assert findings(build(*after(0, 0, slow), *after(280, 1, slow), *after(560, 2, slow)))[0][0] == "launch_bound"
    assert findings(build(*after(0, 0, quick), *after(280, 1, slow), *after(560, 2, quick))) == []


def test_a_launch_bound_step_is_advised_only_what_it_can_use() -> None:
    def remedy(*more: Event, runtime: str = "cuda") -> str:
        return claim(*(row | {"name": row["name"].replace("cuda", runtime)} for row in (*steady(20), *more))).remedy

    assert remedy() == remedy(runtime="hip") == "graphs_or_compile"
    assert remedy(runtime="runFunction - ") == "compile"
    assert remedy(op("Torch-Compiled Region: 0/0", 20, 1)) == "graphs"
    assert remedy(op("CompiledFunctionBackward", 20, 1)) == "graphs"
    assert remedy(op("CompiledFunctionBackward", 20, 1), runtime="runFunction - ") == "batches"
    replay = call("cudaGraphLaunch", 20, 1, 99), kernel("add", 22, 2, 99), kernel("add", 24, 2, 99)
    assert remedy(*replay) == "more_graphs_or_compile"


def test_syncs_that_no_graph_can_capture_are_counted() -> None:
    def syncs(*more: Event) -> object:
        return claim(*steady(20), *more).measures.get("syncs_mean")

    assert syncs(call("cudaStreamSynchronize", 29, 2)) == 1
    assert syncs(call("cudaMalloc", 29, 2)) is syncs() is None
    tries = (
        op("aten::cudnn_convolution", 29, 10),
        call("cudaEventSynchronize", 30, 2),
        call("cudaEventElapsedTime", 33, 1),
    )
    assert syncs(*tries) is None  # a library that tries kernels does so once


def test_a_launch_bound_step_names_its_phase_and_the_gaps_that_count() -> None:
    steadily = claim(*steady(20))
    assert steadily.subject.phase == "forward"
    assert steadily.measures["share_pct"] == pytest.approx(100 * 190 / 280)
    assert (steadily.measures["host_bound_ns"], steadily.measures["tiny_pct"]) == (190_000, 100)
    rows = [step(0, 4_000), *steady(100)[1:], launch(3_000, 2, 11), kernel("add", 3_003, 900, 11)]
    paused = claim(*rows)
    assert (paused.ns, paused.measures["host_bound_ns"]) == (990_000, pytest.approx(2_910_000, rel=0.01))


def test_a_launch_bound_step_that_computes_for_longer_says_so() -> None:
    """Ten gaps of 19 us each, beside ten tiny kernels and one long one."""

    def shares(long_us: int) -> tuple[object, object]:
        rows = [step(0, 283 + long_us), *steady(20)[1:], launch(277, 2, 11), kernel("gemm", 280, long_us, 11)]
        measures = claim(*rows).measures
        return measures["share_pct"], measures["compute_pct"]

    assert shares(20) == pytest.approx((62.7, 33.0), abs=0.1)
    assert shares(500) == pytest.approx((24.3, 74.1), abs=0.1)


def test_long_kernels_short_gaps_long_pauses_and_syncs_are_not_launch_bound() -> None:
    assert findings(build(*steady(20, dur=12))) == []
    assert findings(build(*steady(1))) == []
    assert findings(build(*steady(1002))) == []
    waits = [call("cudaStreamSynchronize", n * 28 + 1, 12) for n in range(10)]
    assert findings(build(*steady(20), *waits)) == []


def copying(*, to: str = "DtoH", copies: int = 2, linked: bool = False, loop: float = 60, arguments: int = 0) -> Trace:
    """A step of ten kernels of 20, each after an op of `loop` of 100 in which copies run; some hand it arguments."""
    rows = [step(0, 1200)]
    for n in range(10):
        begin = 120 * n
        rows += [op("aten::mul", begin, 98), op("aten::_copy_from", begin + 10, loop)]
        for number in range(copies):
            corr = 100 + 10 * n + number if linked else 0
            rows.append(memcpy(f"{to} (dma)", begin + 12 + 4 * number, 2, corr, stream=9))
            rows += [call("cudaMemcpyAsync", begin + 11 + 4 * number, 1, corr)] if linked else []
        rows += [memcpy("HtoD (dma)", begin + 80 + 4 * number, 2, 0, stream=9) for number in range(arguments)]
        rows += [launch(begin + 96, 2, n + 1), kernel("mul", begin + 100, 20, n + 1)]
    return build(*rows)


@pytest.mark.parametrize("linked", [False, True])
def test_gaps_in_ops_that_copy_to_the_host_are_round_trips(linked: bool) -> None:
    """Kernels are not tiny; of each gap of 98, but for the copies of 4, the device waits for 56 in the op that copies.

    The op around it copies only in the one inside it.
    """
    trace = copying(linked=linked)
    (round_trips,) = analyze(Run("", (trace,)), "launches").findings
    assert (round_trips.code, round_trips.ns, round_trips.subject.op) == (
        "host_round_trips",
        560_000,
        "aten::_copy_from",
    )
    assert round_trips.measures == {
        "time_ns": 940_000,
        "share_pct": pytest.approx(100 * 940 / 1200),
        "compute_pct": pytest.approx(100 * 200 / 1200),
        "copies_mean": 20,
        "to_host_mean": 20,
        "kernels_mean": 10,
    }


def test_copies_that_hand_a_kernel_its_arguments_are_part_of_its_launch() -> None:
    """They begin in the op that launches it, and have no launch of their own; those of the op that copies count."""
    (round_trips,) = analyze(Run("", (copying(arguments=3),)), "launches").findings
    assert (round_trips.measures["copies_mean"], round_trips.measures["to_host_mean"]) == (20, 20)
    assert len(host_copies(copying(to="HtoD"))) == 20
    assert len(host_copies(copying(to="HtoD", copies=0, arguments=3))) == 0


@pytest.mark.parametrize(
    ("trace", "why_not"),
    [
        (copying(to="HtoD"), "nothing comes back"),
        (copying(copies=0), "fewer copies than kernels"),
        (copying(loop=40), "most gaps in other ops"),
    ],
)
def test_other_gaps_are_no_round_trips(trace: Trace, why_not: str) -> None:
    assert findings(trace) == [], why_not


def test_the_same_kernel_on_the_same_shapes_is_a_duplicate() -> None:
    rows = [step(0, 100)]
    for n, (name, shape, grid) in enumerate([("mm", [8], 4), ("mm", [8], 4), ("mm", [9], 4), ("mm", [8], 5)]):
        start = 10 * n + 1
        dims = {"Input Dims": [shape]}
        rows += [op(f"aten::{name}", start, 8, **dims), launch(start + 1, 1, n + 1)]
        rows += [kernel("gemm", start + 3, 4, n + 1, grid=[grid, 1, 1])]
    assert table(build(*rows), "duplicates") == [
        {
            "rank": 0,
            "phase": "forward",
            "op": "aten::mm",
            "shapes": "[[8]]",
            "name": "gemm",
            "grid": "4x1x1",
            "num": 2,
            "gpu_ns": 8_000,
        }
    ]


def test_duplicates_that_take_next_to_nothing_are_one_row() -> None:
    """One of 50 us three times, and two pairs of 10 ns."""
    rows = [step(0, 400)]
    kernels = [*[("mm", 50)] * 3, *[("a", 0.01)] * 2, *[("b", 0.01)] * 2]
    for n, (name, lasts) in enumerate(kernels):
        start = 55 * n + 1
        rows += [op(f"aten::{name}", start, 8, **{"Input Dims": [[8]]}), launch(start + 1, 1, n + 1)]
        rows += [kernel(name, start + 3, lasts, n + 1, grid=[1, 1, 1])]
    repeated = [(row["name"], row["num"], row["gpu_ns"]) for row in table(build(*rows), "duplicates")]
    assert repeated == [("mm", 3, 150_000), (OTHERS, 4, 40)]


def test_without_shapes_the_report_says_what_would_record_them() -> None:
    shapeless = build(step(0, 9), op("aten::mm", 1, 8), launch(2, 1, 1), kernel("gemm", 4, 1, 1))
    report = analyze(Run("", (shapeless,)), "duplicates")
    assert [unknown.argument for unknown in report.unknown] == ["record_shapes=True"]
    assert analyze(Run("", (build(step(0, 9)),)), "duplicates").unknown == ()


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no {TRACES}")
@pytest.mark.parametrize("name", ["ddp-a100/rank0", "ep-moe-b200-ab/ref", "owlv2/mi300"])
def test_launches_and_duplicates_of_a_real_trace_agree_with_its_kernels(name: str) -> None:
    run = read(Path(TRACES, f"{name}.json.gz"))
    kernels, launches = table(run, "kernels"), table(run, "launches")
    assert sum(row["num_kernels"] for row in launches) == sum(row["num"] for row in kernels)
    cells = [row for row in table(run, "partition") if row["category"] == "host_bound"]
    assert sum(row["host_bound_ns"] for row in launches) == sum(row["dur_ns"] for row in cells)
    longest = {(row["phase"], row["name"]): row["num"] for row in kernels}
    large = [row for row in table(run, "duplicates") if row["name"] != OTHERS]
    assert all(row["num"] <= longest[row["phase"], row["name"]] for row in large)
