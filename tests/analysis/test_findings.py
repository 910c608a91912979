"""Findings: each rule on a trace where it fires and on one where it must not, and which of them people see."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from builder import (
    Event,
    annotation,
    build,
    call,
    comms,
    frame,
    kernel,
    launch,
    memcpy,
    op,
    row,
    step,
    table,
)

from traceq.analysis._lost_time import rate_words
from traceq.analysis.registry import analyze, sheet
from traceq.claims.claim import BY_REPLAY, Basis, Claim, Subject
from traceq.escaped_console import EscapedConsole
from traceq.model import Run, Trace
from traceq.renderers.markdown import sheet_to_markdown
from traceq.renderers.text import print_sheet
from traceq.report import Cell, Column, Report, Sheet, Source, Table, Unknown
from traceq.units import Unit


def findings(analysis: str, *events: Event) -> list[tuple[str, int]]:
    return [(finding.code, finding.ns) for finding in report(analysis, *events).findings]


def report(analysis: str, *events: Event) -> Report:
    return analyze(Run("", (build(*events),)), analysis)


def loading(name: str, wait: int) -> list[Event]:
    """Two steps of 100 us; the second loads from 110 on, and its kernel begins 10 us after that."""
    return [
        step(0, 100, 0),
        step(100, 100, 1),
        launch(1, 2, 1),
        kernel("a", 5, 100, 1),
        annotation(name, 110, wait),
        launch(113 + wait, 2, 2),
        kernel("a", 120 + wait, 80 - wait, 2),
    ]


@pytest.mark.parametrize("name", ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "dataload_wait"])
def test_a_step_that_waits_for_its_data_is_starved(name: str) -> None:
    (finding,) = report("dataload", *loading(name, 40)).findings
    assert (finding.code, finding.ns) == (
        "starved",
        40_000,
    )  # the first step ends with a device that lags, and is left out
    assert [*table(build(*loading(name, 40)), "dataload")[1].values()] == [0, 1, 40_000, 40_000]


OWN = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@pytest.mark.parametrize(("name", "remedy", "num_workers"), [(OWN, "own_batches", 0), (WORKERS, "", None)])
def test_a_loader_without_workers_is_not_told_to_take_more_of_them(
    name: str, remedy: str, num_workers: int | None
) -> None:
    (claim,) = report("dataload", *loading(name, 40)).findings
    assert (claim.remedy, claim.measures.get("num_workers"), claim.gain) == (remedy, num_workers, (40_000, 40_000))


def test_the_line_that_makes_the_batches_is_named_where_stacks_are_recorded() -> None:
    rows = [step(0, 100), annotation(OWN, 0, 40), op("aten::mm", 50, 40)]
    made = frame("data.py(7): __getitem__", 2, 38), frame("random.py(385): sample", 5, 30), op("aten::cat", 36, 3)
    (claim,) = report("dataload", *rows, *made).findings
    assert (claim.subject.line, claim.measures["line_pct"]) == ("data.py:7 __getitem__", 95)
    (claim,) = report("dataload", *rows[:3], frame("data.py(7): __getitem__", 2, 15)).findings
    assert claim.subject.line == ""  # less than half


@pytest.mark.parametrize(("name", "num_workers"), [(OWN, 0), (WORKERS, None)])
def test_a_main_thread_that_makes_its_batches_waits_for_no_loader(name: str, num_workers: int | None) -> None:
    """On a CPU, in a trace without steps, with the ops in the loader; beside a device its time is host-bound."""
    (lost,) = report("partition", annotation(name, 0, 40), op("aten::cat", 20, 10), op("aten::mm", 40, 60)).findings
    assert (lost.code, lost.ns, lost.measures["share_pct"]) == ("dataload_wait", 40_000, 40)
    assert lost.measures.get("num_workers") == num_workers
    (host_bound,) = (each for each in report("partition", *loading(name, 40)).findings if each.code == "host_bound")
    assert "40.0 us in the data loader" in str(host_bound.measures["places"])


def test_a_loader_that_is_quick_or_that_the_device_hides_starves_nobody() -> None:
    assert findings("dataload", *loading("enumerate(DataLoader)#x", 4)) == []
    assert findings("dataload", *loading("my own work", 40)) == []
    busy = loading("enumerate(DataLoader)#x", 40)
    busy[3] = kernel("a", 5, 150, 1)
    assert findings("dataload", *busy) == []


def test_gaps_between_kernels_that_are_launched_already_are_not_the_loaders() -> None:
    """Of 40 us in the loader the device idles 25: 5 of them before a kernel that is launched."""
    rows = [step(0, 100, 0), step(100, 100, 1), launch(1, 2, 1)]
    rows += [kernel("a", 5, 100, 1), launch(102, 2, 2), kernel("b", 105, 10, 2), launch(106, 2, 3)]
    rows += [kernel("c", 120, 10, 3), annotation("dataload_wait", 110, 40), launch(151, 2, 4), kernel("d", 155, 45, 4)]
    (finding,) = report("dataload", *rows).findings
    assert finding.ns == 20_000


def test_without_a_device_all_of_the_wait_holds_up_the_step() -> None:
    rows = [step(0, 100), annotation("enumerate(DataLoader)#x", 0, 20), op("aten::mm", 30, 60)]
    assert findings("dataload", *rows) == [("starved", 20_000)]
    assert findings("dataload", *rows[1:]) == []  # without steps a first batch may be before the loop


def test_workers_that_bring_several_batches_at_once_starve_a_loop_in_fewer_than_half_of_its_steps() -> None:
    """Each third of 24 waits 60 us."""
    marked = [step(100 * n, 100, n) for n in range(24)]
    waits = [annotation(WORKERS, 100 * n, 60) for n in range(0, 24, 3)]
    ops = [op("aten::mm", 100 * n + 60, 38) for n in range(24)]
    assert findings("dataload", *marked, *waits, *ops) == [("starved", 20_000)]


def stepping(optimizer: str, dur: int, *ops: str) -> list[Event]:
    """A step of 100 us, the last `dur` of which are the optimizer's, with a kernel for each of its ops."""
    rows = [step(0, 100), launch(0, 1, 99), kernel("gemm", 1, 99 - dur, 99)]
    rows += [annotation(f"Optimizer.step#{optimizer}.step", 100 - dur, dur)]
    for n, name in enumerate(ops):
        rows += [op(name, 100 - dur + 3 * n, 3), launch(100 - dur + 3 * n, 1, n + 1)]
        rows += [kernel("k", 101 - dur + 3 * n, 2, n + 1)]
    return rows


@pytest.mark.parametrize(
    ("optimizer", "ops", "implementation", "fires"),
    [
        ("AdamW", ("aten::mul_", "aten::addcdiv_"), "for-loop", True),
        ("SGD", ("aten::_foreach_add_",), "foreach", True),
        ("AdamW", ("aten::_fused_adamw_",), "fused", False),
        ("FusedAdam", ("aten::add_",), "fused", False),
        ("AdamW", ("Torch-Compiled Region: 0/0",), "compiled", False),
        ("AdamW", ("triton_poi_fused_add_mul_0",), "compiled", False),
        ("NorMuon", ("aten::_foreach_add_",), "foreach", False),
        ("AdamW", (), "unknown", False),
    ],
)
def test_an_optimizer_that_torch_could_fuse_is_a_finding(
    optimizer: str, ops: tuple[str, ...], implementation: str, fires: bool
) -> None:
    rows = stepping(optimizer, 20, *ops)
    (row,) = table(build(*rows), "optimizer")
    assert (row["name"], row["implementation"], row["num_gpu_ops"]) == (optimizer, implementation, len(ops))
    assert [code for code, _ in findings("optimizer", *rows)] == ["unfused_optimizer"] * fires


def test_an_optimizers_part_of_the_step_is_its_kernels_and_the_idle_time_within_it() -> None:
    rows = stepping("AdamW", 20, "aten::mul_", "aten::addcdiv_")
    assert table(build(*rows), "optimizer")[0]["window_ns"] == 20_000
    assert findings("optimizer", *stepping("AdamW", 9, "aten::mul_")) == []


@pytest.mark.parametrize(("calls_us", "gain_ns"), [((30, 1), [11_000]), ((16, 15), [39_000]), ((39, 1), [])])
def test_a_fused_optimizer_goes_over_all_tensors_once_too(calls_us: tuple[int, ...], gain_ns: list[int]) -> None:
    """Of 40 us: that takes at least as long as the calls of one op beyond what a call costs, as the shortest does."""
    rows = [step(0, 100), op("aten::mm", 0, 60), annotation("Optimizer.step#SGD.step", 60, 40)]
    rows += [op("aten::add_", 60 + sum(calls_us[:n]), us) for n, us in enumerate(calls_us)]
    assert [claim.gain for claim in report("optimizer", *rows).findings] == [(0, ns) for ns in gain_ns]


def copying(name: str, *blocked_us: int) -> list[Event]:
    """Steps of 100 us; in each the host waits so long for a copy and launches the kernel after it."""
    rows = []
    for n, blocked in enumerate(blocked_us):
        start = 100 * n
        rows += [step(start, 100, n), call("cudaMemcpyAsync", start + 1, blocked, 10 * n + 1)]
        rows += [memcpy(name, start + 3, blocked - 4, 10 * n + 1), launch(start + blocked + 4, 2, 10 * n + 2)]
        rows += [kernel("a", start + blocked + 8, 91 - blocked, 10 * n + 2)]
    return rows


def test_copies_from_pageable_memory_that_hold_up_the_step_are_a_finding() -> None:
    (finding,) = report("memcpy", *copying("HtoD (Pageable -> Device)", 30, 30)).findings
    assert (finding.code, finding.measures["blocked_ns"]) == ("pageable_copies", 30_000)
    assert 0 < finding.ns <= 30_000


def test_pinned_memory_gains_up_to_what_the_link_is_faster_where_that_is_known() -> None:
    """Of 56 us for 100 kB, an A100's link of 25 GB/s takes 4 us."""
    copies = copying("HtoD (Pageable -> Device)", 60, 60)
    for each in copies[2::5]:
        each["args"]["bytes"] = 100_000
    on_a100 = build(*copies, deviceProperties=[{"name": "NVIDIA A100-SXM4-40GB"}])
    gains = [analyze(Run("", (trace,)), "memcpy").findings[0].gain for trace in (build(*copies), on_a100)]
    assert gains == [(8_750, 8_750), (8_750, 58_000)]  # the kernel begins at 10 instead of 68 us
    (exposed,) = [each for each in analyze(Run("", (on_a100,)), "partition").findings if each.code == "exposed_memcpy"]
    assert exposed.measures["rates"] == "HtoD pageable at 1.8 of 25.0 GB/s"


def test_a_copy_of_one_value_moves_at_no_rate() -> None:
    copies = {"HtoD pageable": (1_000_000, 100_000), "DtoH pinned": (4, 2_000)}
    assert rate_words([copies]) == "HtoD pageable at 10.0 GB/s"


def test_pageable_copies_that_hold_up_one_step_of_three_are_none() -> None:
    assert [code for code, _ in findings("memcpy", *copying("HtoD (Pageable -> Device)", 60, 60, 60))]
    one = copying("HtoD (Pinned -> Device)", 60, 60, 60)
    one[6]["name"] = "Memcpy HtoD (Pageable -> Device)"
    assert findings("memcpy", *one) == []


@pytest.mark.parametrize("name", ["HtoD (Pinned -> Device)", "DtoH (Device -> Pageable)"])
def test_pinned_copies_and_copies_to_the_host_are_none(name: str) -> None:
    assert findings("memcpy", *copying(name, 30, 30)) == []


def measured(*waits: Event) -> list[Event]:
    """A step of 100 us that launches two kernels, and some waits."""
    work = [launch(20, 2, 1), kernel("a", 25, 20, 1), launch(60, 2, 2), kernel("b", 65, 20, 2)]
    return [step(0, 100), *work, *waits]


def test_synchronizes_around_all_launches_are_those_of_a_measurement() -> None:
    """Before the first launch, and in the step, after the last one; one between launches is the program's."""
    around = call("cudaDeviceSynchronize", 1, 15), call("cudaDeviceSynchronize", 70, 16)
    rows = {row["once"]: row for row in table(build(*measured(*around)), "syncs")}
    assert rows["measurement"]["replay_ns"] == 0
    assert rows["measurement"]["num"] == 2
    assert findings("syncs", *measured(*around)) == []
    assert findings("replay", *measured(*around)) == []
    between = call("cudaDeviceSynchronize", 26, 20)
    assert [code for code, _ in findings("syncs", *measured(between))] == ["costly_sync"]
    (row,) = table(build(*measured(*around, between)), "syncs")
    assert (row["once"], row["num"]) == ("", 3)  # one row, of which not all are


def syncing(*waits_us: int, name: str = "cudaStreamSynchronize") -> list[Event]:
    """Steps of 100 us in which the host waits so long for a kernel, and then launches the other one; 0 is no wait."""
    rows = []
    for n, waits in enumerate(waits_us):
        start = 100 * n
        rows += [step(start, 100, n), launch(start + 2, 2, 10 * n + 1), kernel("a", start + 5, 20 + waits, 10 * n + 1)]
        rows += [call(name, start + 25, waits)] * (waits > 0)
        rows += [launch(start + 86, 2, 10 * n + 2), kernel("b", start + 89, 10, 10 * n + 2)]
    return rows


@pytest.mark.parametrize(
    ("waits_us", "blocked_ns", "steps"),
    [
        ((60, 60, 60), 60_000, {}),
        ((60,), 60_000, {}),
        ((60, 60, 0, 60, 60), 48_000, {"num_steps_with": 4, "num_counted": 5}),
    ],
)
def test_a_sync_tells_the_steps_that_have_it(waits_us: tuple[int, ...], blocked_ns: int, steps: dict[str, int]) -> None:
    (claim,) = report("syncs", *syncing(*waits_us)).findings
    assert (claim.code, claim.measures["blocked_ns"], claim.basis) == ("costly_sync", blocked_ns, Basis(len(waits_us)))
    assert {name: claim.measures[name] for name in ("num_steps_with", "num_counted") if name in claim.measures} == steps


@pytest.mark.parametrize("waits_us", [(0, 60, 0), (0, 60, 60), (60, 0), (0, 60, 60, 0)])
def test_a_sync_that_costs_time_in_some_steps_alone_is_a_row_and_no_finding(waits_us: tuple[int, ...]) -> None:
    (row,) = table(build(*syncing(*waits_us)), "syncs")
    assert row["label"] == "costly"
    assert row["replay_ns"] > 0
    assert findings("syncs", *syncing(*waits_us)) == []


def test_a_sync_that_saves_unequal_times_in_every_step_is_a_finding() -> None:
    """Of times that vary so much the mean has an interval from below 0, but none of them is chance."""
    (finding,) = report("syncs", *syncing(2, 60, 2)).findings
    assert finding.code == "costly_sync"


def test_a_long_wait_in_one_of_three_steps_is_not_told_to_stay() -> None:
    def waiting(*steps_with_one: int) -> list[tuple[str, int]]:
        rows = []
        for n in range(3):
            start = 100 * n
            rows += [step(start, 100, n), launch(start + 1, 1, n + 1), kernel("a", 5 + 200 * n, 198, n + 1)]
            rows += [call("cudaEventSynchronize", start + 10, 40)] * (n in steps_with_one)
        return findings("syncs", *rows)

    assert waiting(0, 1, 2) == [("free_sync", 0)]
    assert waiting(1) == []


def test_a_step_in_which_kernels_are_loaded_is_to_be_discounted() -> None:
    rows = [step(0, 100, 0), step(100, 100, 1), row("overhead", "Lazy Function Loading", 20, 5, tid=7)]
    steps_report = report("steps", *rows)
    assert [line[-1] for line in steps_report.tables[0].rows] == [5_000, 0]
    (doubt,) = steps_report.caveats
    assert doubt.code == "overhead"
    assert "5.00 us (5.0 % of ProfilerStep#0)" in doubt.text
    assert report("steps", *rows[:2], row("overhead", "Buffer Flush", 201, 9, tid=7)).caveats == ()
    unmarked = report("steps", launch(0, 2, 1), kernel("add", 30, 70, 1), rows[2]).caveats
    assert [each.code for each in unmarked] == ["no_steps", "overhead"]
    assert "5.00 us (5.0 % of the trace)" in unmarked[1].text
    (of_one,) = report("steps", rows[0], rows[2]).caveats
    assert "discount" in doubt.text
    assert "discount" not in of_one.text
    meanwhile = [launch(0, 2, 1), kernel("add", 5, 95, 1)]
    assert report("steps", *rows, *meanwhile).caveats == ()  # the device was busy


@pytest.mark.parametrize("name", ["Command Buffer Full", "Buffer Flush"])
def test_overhead_that_holds_up_no_call_disturbs_no_step(name: str) -> None:
    """Launches wait for room in the queue, or a thread of the profiler's works beside them."""
    full = row("overhead", name, 20, 50, tid=7)
    steps_report = report("steps", step(0, 100, 0), step(100, 100, 1), full)
    assert ([line[-1] for line in steps_report.tables[0].rows], steps_report.caveats) == ([0, 0], ())


SOURCE = Source("a.json", 1, (0,), 1, "", "")


def shown(*results: Claim, unknown: tuple[Unknown, ...] = ()) -> str:
    sheet = Sheet(SOURCE, (Report("any", findings=results, unknown=unknown),))
    console = EscapedConsole(StringIO(), width=200, no_color=True)
    with console.capture() as capture:
        print_sheet(sheet, console)
    pasted = [line for line in sheet_to_markdown(sheet).splitlines() if line.startswith("- ")]
    assert len(pasted) == capture.get().count("\n* ")
    return capture.get()


def test_people_see_the_eight_findings_that_give_back_most() -> None:
    lines = shown(*(Claim("any", ns, lead=f"saves {ns}", severity="low") for ns in range(11))).splitlines()
    assert lines[1:] == [*(f"* saves {ns}" for ns in range(10, 2, -1)), "  3 more in --json"]


def test_what_is_wrong_stands_first_and_what_costs_nothing_last() -> None:
    costs, free = Claim("a", 5, lead="costs", severity="medium"), Claim("b", lead="free", severity="low")
    wrong = Claim("c", lead="wrong", severity="high")
    assert shown(costs, free, wrong).splitlines()[1:] == ["* wrong", "* costs", "* free"]


def test_what_another_claim_tells_better_is_left_out() -> None:
    host_bound, sync = Claim("host_bound", 100), Claim("costly_sync", 8, Subject(kind="htod"))
    starved, copies, launches = Claim("starved", 30), Claim("pageable_copies", 8), Claim("launch_bound", 20)

    def left(*claims: Claim) -> set[str]:
        return {claim.code for claim in Sheet(SOURCE, (Report("any", findings=claims),)).top_findings}

    assert left(host_bound, sync, starved, copies) == {"host_bound", "starved", "pageable_copies"}
    assert left(host_bound, sync, starved, copies, launches) == {"starved", "pageable_copies", "launch_bound"}


def test_what_the_trace_lacks_is_one_line() -> None:
    unknown = (Unknown("shapes", "record_shapes=True"), Unknown("memory", "profile_memory=True"))
    text = shown(unknown=(*unknown, Unknown("sizes", "record_shapes=True")))
    assert text.endswith("\nNot recorded: shapes and sizes (record_shapes=True); memory (profile_memory=True).\n")


def two_devices() -> Trace:
    return build(
        step(0, 100),
        launch(0, 1, 1),
        kernel("a", 10, 40, 1, device=0),
        launch(2, 1, 2),
        kernel("a", 30, 30, 2, device=1),
        launch(4, 1, 3),
        kernel("ncclDevKernel_AllReduce", 80, 10, 3, device=1),
    )


def test_each_device_of_a_process_has_its_own_busy_time() -> None:
    keys = ("device", "num_gpu_ops", "sum_ns", "busy_ns", "compute_ns", "idle_ns", "busy_pct")
    assert [tuple(row[key] for key in keys) for row in table(two_devices(), "devices")] == [
        (0, 1, 40_000, 40_000, 40_000, 60_000, 40.0),
        (1, 2, 40_000, 40_000, 30_000, 60_000, 40.0),
    ]


def test_the_partition_of_several_devices_idles_when_none_of_them_runs() -> None:
    cells = {row["category"]: row["dur_ns"] for row in table(two_devices(), "partition")}
    assert cells["compute"] == 50_000
    assert cells["exposed_comm"] == 10_000
    assert sum(cells.values()) == 100_000
    (doubt,) = analyze(Run("", (two_devices(),)), "coverage").caveats
    assert doubt.code == "several_devices"
    (view,) = analyze(Run("", (two_devices(),)), "devices").views
    assert len(view.rows) == 2


def test_one_device_a_process_needs_no_table_of_devices() -> None:
    assert report("devices", step(0, 9), launch(0, 1, 1), kernel("a", 2, 3, 1)).views == ()


def measuring(*steps_with_one: int, device: bool) -> list[Event]:
    """Three steps of 100 us; in some of them the ranks gather a metric for 20 us."""
    rows = []
    for n in range(3):
        start = 100 * n
        rows += [step(start, 100, n), op("aten::mm", start + 1, 60)]
        if device:
            rows += [launch(start + 2, 1, 10 * n + 1), kernel("gemm", start + 4, 60, 10 * n + 1)]
        if n in steps_with_one:
            rows += [annotation("update_metrics", start + 65, 26), comms("_allgather_base", start + 70, 20, (4, 16))]
            rows += [annotation("gloo:all_gather", start + 70, 20)] if not device else []
            if device:
                rows += [launch(start + 71, 1, 10 * n + 2)]
                rows += [kernel("ncclDevKernel_AllGather_RING_LL", start + 75, 20, 10 * n + 2)]
    return rows


@pytest.mark.parametrize("device", [True, False])
def test_metrics_that_are_gathered_in_every_step_are_a_finding(device: bool) -> None:
    assert findings("metric_gathers", *measuring(0, 1, 2, device=device)) == [("metric_gathers", 20_000)]
    assert findings("metric_gathers", *measuring(0, 2, device=device)) == []
    assert findings("metric_gathers", *measuring(device=device)) == []
    (row,) = table(build(*measuring(0, 2, device=device)), "metric_gathers")
    assert (row["name"], row["num"], row["num_steps"]) == ("all_gather", 2, 2)
    assert row["exposed_ns"] == 40_000


@pytest.mark.parametrize("device", [True, False])
def test_metrics_that_hold_up_one_step_alone_are_no_finding(device: bool) -> None:
    """Their mean is 20 us of 100, too, but 0.4 us in two of three steps: there nothing but one rank's delay shows."""

    def lasting(index: int, us: float) -> list[Event]:
        first = 100 * index + 70
        rows = measuring(0, 1, 2, device=device)
        return [row | {"dur": us} for row in rows if row["dur"] == 20 and first <= row["ts"] < first + 10]

    others = [row for row in measuring(0, 1, 2, device=device) if row["dur"] != 20]
    uneven = [*others, *lasting(0, 0.4), *lasting(1, 0.4), *lasting(2, 24)]
    assert findings("metric_gathers", *uneven) == []
    even = [*others, *lasting(0, 18), *lasting(1, 20), *lasting(2, 22)]
    assert findings("metric_gathers", *even) == [("metric_gathers", 20_000)]


def test_metrics_that_hold_up_each_step_are_a_finding_however_unlike_these_are() -> None:
    """20 us of three steps of 100, 300 and 2,000 us, as beside other processes: no share of them is certain."""
    rows: list[Event] = []
    for number, (start, us) in enumerate(((0, 100), (100, 300), (400, 2_000))):
        rows += [step(start, us, number), op("aten::mm", start + 1, 60), annotation("update_metrics", start + 65, 26)]
        rows += [comms("_allgather_base", start + 70, 20, (4, 16)), annotation("gloo:all_gather", start + 70, 20)]
    assert findings("metric_gathers", *rows) == [("metric_gathers", 20_000)]


def test_a_gather_that_a_kernel_hides_holds_nothing_up() -> None:
    hidden = [kernel("gemm", 100 * n + 64, 34, 10 * n + 1) for n in range(3)]
    assert findings("metric_gathers", *measuring(0, 1, 2, device=True), *hidden) == []


def test_of_several_ranks_the_worst_is_named() -> None:
    fast, slow = (replace(build(*loading("dataload_wait", wait)), rank=rank) for rank, wait in enumerate((20, 40)))
    (finding,) = analyze(Run("", (fast, slow)), "dataload").findings
    assert (finding.ns, finding.subject.rank, finding.basis) == (40_000, 1, Basis(1))


def text_of(*events: Event) -> str:
    console = EscapedConsole(StringIO(), width=200, no_color=True)
    with console.capture() as capture:
        print_sheet(sheet(Run("trace", (build(*events),))), console)
    return capture.get()


WAITS = (
    op("aten::nonzero", 4, 70),
    launch(1, 1, 1),
    kernel("a", 3, 40, 1),
    call("cudaStreamSynchronize", 5, 60),
    annotation("enumerate(DataLoader)#x", 70, 30),
    launch(180, 2, 2),
    kernel("b", 190, 10, 2),
)


def test_nothing_is_said_of_steps_where_a_trace_has_none() -> None:
    text = text_of(*WAITS).partition("Whole trace, without steps\n")
    assert "60.0 us of the trace" in text[0]
    assert "Critical path of the trace" in text[2]
    assert not any(unit in text[0] + text[2] for unit in ("a step", "per step"))
    assert "60.0 us per step" in text_of(step(0, 200), *WAITS)


def test_columns_that_are_empty_in_every_row_are_left_out() -> None:
    columns = Column("rank", "rank", Unit.COUNT), Column("line", "line"), Column("ns", "time", Unit.NS)
    filled = Table("t", "T", columns, ((0, "", None), (1, "", 0))).non_empty_columns
    assert [column.key for column in filled.columns] == ["rank", "ns"]
    assert filled.rows == ((0, None), (1, 0))
    assert Table("t", "T", columns, ()).non_empty_columns.columns == columns


def test_phases_without_anything_are_no_rows_and_work_without_a_launch_is() -> None:
    def names(*events: Event) -> list[Cell]:
        (view,) = report("phases", *events).views
        return [row[0] for row in view.rows]

    work = step(0, 100), launch(10, 2, 1), kernel("a", 20, 10, 1)
    assert names(*work) == ["forward"]
    assert names(*work, kernel("b", 5, 2)) == ["forward", "before_window"]
    assert names(*work, kernel("b", 50, 2)) == ["forward", "unattributed"]


def test_syncs_of_one_kind_that_hide_behind_each_other_are_told_together() -> None:
    """Without the first copy the host waits in the second for the same kernel; then it launches too late."""

    def rows(number: int, *copies: str) -> list[Event]:
        begin, corr = 1_400 * number, 100 * number
        events = [step(begin, 1_400, number), launch(begin + 2, 2, corr + 1), kernel("gemm", begin + 10, 500, corr + 1)]
        for n, name in enumerate(copies):
            start = begin + (20 if n == 0 else 512 + 10 * n)
            dur = 500 if n == 0 else 8
            events += [op(name, start, dur), call("cudaStreamSynchronize", start + 1, dur - 2)]
        for n in range(6):
            start = begin + 100 * n
            events += [op("aten::add", start + 540, 90), launch(start + 541, 80, corr + 10 + n)]
            events.append(kernel("add", start + 625, 50, corr + 10 + n))
        return events

    def joint(*copies_of_steps: tuple[str, ...]) -> list[Claim]:
        events = (event for number, copies in enumerate(copies_of_steps) for event in rows(number, *copies))
        findings = analyze(Run("", (build(*events),)), "replay").findings
        return [finding for finding in findings if finding.code == "joint_syncs"]

    both = ("aten::item", "aten::nonzero")
    (claim,) = joint(both)
    assert (claim.ns, claim.gain_by, claim.basis) == (claim.measures["together_ns"], BY_REPLAY, Basis(1))
    assert (claim.measures["of_kind"], claim.measures["kind_ns"]) == ("stream syncs", claim.ns)
    assert claim.ns > 1.5 * claim.measures["alone_ns"]
    assert joint(("aten::item",)) == []
    assert [each.basis for each in joint(both, both, both)] == [Basis(3)]
    assert joint((), both, ()) == []


@pytest.mark.parametrize(("num_calls", "is_noted"), [(250, True), (150, False)])
def test_python_stacks_that_slow_the_host_are_noted(num_calls: int, is_noted: bool) -> None:
    """Two steps of 1 ms with a call of Python per 4.00 us, or one per 6.67 us."""
    rows = [step(0, 1_000), step(1_000, 1_000, 1)]
    rows += [frame(f"train.py({n}): run", 1_000 * n / num_calls, 1) for n in range(2 * num_calls)]
    caveats = analyze(Run("", (build(*rows),)), "steps").caveats
    assert [caveat.code for caveat in caveats] == ["python_stacks"] * is_noted
    assert all("250 calls per step, one per 4.00" in caveat.text for caveat in caveats)
