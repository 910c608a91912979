"""The step that would be without a wait: exact on traces of a few lines, and on real ones with known stalls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from builder import Event, annotation, build, call, kernel, launch, memcpy, op, row, step, table
from injection import TRACES, Row, rows_of, spread, with_stalls

from traceq.analysis.registry import analyze
from traceq.causes.removed_waits import kinds_of_waits
from traceq.causes.replay import replay_of
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.facts.timeline.steps import steps
from traceq.kineto.read import read_trace
from traceq.model import Run, Trace

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def saved(*events: Event) -> dict[str, float]:
    """What a step saves, in us, by the waits that are removed."""
    results = table(build(*events), "replay")
    return {r["removed"]: r["saved_ns"] / 1000 for r in results if r["removed"] not in ("communication", "host time")}


def wait(start: int, end: int, **more: Any) -> Event:
    return call("cudaDeviceSynchronize", start, end - start, **more)


def test_a_stall_of_a_host_that_the_device_waits_for_costs_all_of_it() -> None:
    """The host waits 15-40 and launches b at 45, which runs 50-60: without the wait at 20 and 25-35."""
    events = step(0, 55), launch(5, 2, 1), kernel("a", 10, 10, 1), wait(15, 40), launch(45, 2, 2)
    assert saved(*events, kernel("b", 50, 10, 2)) == {"nothing": 0, "device syncs": 25}


def test_a_deep_queue_absorbs_a_stall() -> None:
    """What was launched before the wait lasts longer than the wait and the next launch."""
    queue = [event for n in range(4) for event in (launch(5 + n, 1, 1 + n), kernel("long", 10 + 50 * n, 50, 1 + n))]
    late = call("cudaEventSynchronize", 20, 60), launch(90, 2, 9), kernel("b", 210, 10, 9)
    assert saved(step(0, 100), *queue, *late)["event syncs"] == 0


def test_launches_into_a_full_queue_wait_no_longer_than_the_collectives_before_them() -> None:
    """From the 951st on each launch returns as the next of 60 collectives of 100 ends; else it takes 1, or 8 to wait.

    500 launches for another device wait all that time behind a collective, too, in a queue of their own.
    """
    nccl, length, other, num = "ncclDevKernel_AllReduce", 950, 500, 1_010
    rows, begin = [launch(0, 0.5, 1), kernel(nccl, 5, 7_000, 1, stream=20, device=1)], 1.0
    for n in range(1, other):
        rows += [launch(begin, 0.5, n + 1), kernel("gemm", 7_010 + n, 0.5, n + 1, stream=20, device=1)]
        begin += 1
    for n in range(num):
        returns = max(begin + 0.5, 600 + 100 * (n - length + 1))
        name, start, dur = (nccl, 600 + 100 * n, 100) if n < 60 else ("gemm", 6_600 + n, 0.5)
        corr = other + n + 1
        rows += [launch(begin, returns - begin, corr), kernel(name, start, dur, corr)]
        begin = returns + 0.5
    results = {r["removed"]: r for r in table(build(step(0, begin), *rows), "replay")}
    remains_us = results["communication"]["step_ns"] / 1000
    assert other + num < remains_us < 1.5 * (other + num)


@pytest.mark.parametrize(("category", "least_us", "most_us"), [("overhead", 0, 350), ("cpu_op", 4_900, 5_100)])
def test_a_wait_that_only_hides_what_is_once_gives_nothing_back(category: str, least_us: int, most_us: int) -> None:
    """253 ms were to be saved of a rest in which the device idles for 234: 40 of them behind the start of a library."""
    events = launch(5, 2, 1), kernel("a", 10, 5_000, 1), wait(15, 5_015), op("aten::mm", 5_090, 8_010)
    loads = (
        row(category, "Lazy Function Loading", 5_150, 7_850, tid=0),
        launch(13_080, 5, 2),
        kernel("b", 13_110, 100, 2),
    )
    assert least_us <= saved(step(0, 13_300), *events, *loads)["device syncs"] <= most_us


def test_what_is_left_of_the_queue_is_absorbed_and_no_more() -> None:
    """A runs to 70, b is launched at 100: without the wait of 50 us it could start at 55, but a is in its way.

    Work of a stream starts 1.5 us after the work before it, where the trace shows no other usual time.
    """
    events = step(0, 105), launch(5, 2, 1), kernel("a", 10, 60, 1), wait(30, 80), launch(100, 2, 2)
    assert saved(*events, kernel("b", 105, 10, 2))["device syncs"] == 33.5


def test_what_a_wait_for_unrecorded_work_costs_is_not_known() -> None:
    """The trace opens with 5 ms of work that it does not show; the second read, of 45 us, waits for work that it does.

    Without the first the host might have been far ahead, if nothing else had held it up.
    """
    reads = [
        (launch(11, 1, 1), call("cudaStreamSynchronize", 12, 4988), memcpy("DtoH (Device -> Pinned)", 5000, 2, 1)),
        (launch(5101, 1, 3), call("cudaStreamSynchronize", 5110, 45), memcpy("DtoH (Device -> Pinned)", 5151, 2, 3)),
    ]
    work = [launch(5040, 1, 2), kernel("gemm", 5050, 100, 2), launch(5250, 1, 4), kernel("add", 5300, 50, 4)]
    trace = build(step(0, 5400), *reads[0], *reads[1], *work)
    assert (kinds_of_waits(trace) >= 0).tolist() == [False, True]
    (row,) = table(trace, "syncs")
    assert (row["num"], row["step_blocked_ns"], row["step_unrecorded_ns"]) == (2, 5_033_000, 4_988_000)
    assert 0 < row["replay_ns"] <= 45_000


@pytest.mark.parametrize(
    ("name", "goes_on_us", "may_go"),
    [
        ("aten::copy_", 1_100, False),
        ("aten::copy_", 900, True),
        ("aten::_local_scalar_dense", 1_100, True),  # one value, for a log
    ],
)
def test_a_host_that_goes_on_for_long_with_a_copied_tensor_cannot_do_without_it(
    name: str, goes_on_us: int, may_go: bool
) -> None:
    """Of 145 ms of a detection 108 were Python that made records of masks: the last output of the device."""
    copy = op(name, 20, 500), call("cudaMemcpyAsync", 25, 485, 2), memcpy("DtoH (Device -> Pageable)", 500, 5, 2)
    begins = 510 + goes_on_us
    events = launch(5, 2, 1), kernel("a", 10, 480, 1), *copy, launch(begins, 2, 3), kernel("b", begins + 10, 200, 3)
    (row,) = table(build(step(0, begins + 300), *events), "syncs")
    assert (row["replay_ns"] > 0) == may_go


def test_of_two_waits_for_the_same_work_one_alone_gives_hardly_anything_back() -> None:
    """Both wait for a, to 60; the next launch, at 70, could be at 28, but not while one of them is left.

    Without both, b starts 1.5 us after a.
    """
    events = step(0, 90), launch(1, 1, 1), kernel("a", 6, 54, 1)
    waits = call("cudaStreamSynchronize", 10, 51), wait(62, 63)
    result = saved(*events, *waits, launch(70, 1, 2), kernel("b", 75, 40, 2))
    assert result == {"nothing": 0, "stream syncs": 2, "device syncs": 1, "all syncs": 13.5}


def test_being_ahead_counts_where_the_host_falls_behind_much_later() -> None:
    """After the sync the device idles 7 us and later waits 20 us for c.

    Without the sync the host is 31 us ahead: b and c start 1.5 us after the work before them.
    """
    sync = launch(1, 1, 1), kernel("a", 6, 34, 1), call("cudaStreamSynchronize", 10, 31)
    late = launch(42, 1, 2), kernel("b", 47, 60, 2), launch(122, 1, 3), kernel("c", 127, 10, 3)
    (result,) = table(build(step(0, 125), *sync, *late), "syncs")
    assert (result["cost_ns"], result["replay_ns"]) == (3_000, 24_000)


def test_a_copy_that_nobody_waits_for_still_costs_its_launch() -> None:
    events = step(0, 90), launch(5, 2, 1), kernel("a", 10, 10, 1)
    copy = call("cudaMemcpyAsync", 15, 5, 7), memcpy("DtoH (Device -> Pinned)", 25, 2, 7)
    waits = call("cudaStreamSynchronize", 21, 29)
    assert saved(*events, *copy, waits, launch(60, 2, 2), kernel("b", 65, 40, 2))["dtoh syncs"] == 33


def test_a_host_that_runs_ahead_does_not_begin_a_step_before_the_work_of_the_one_before_it_is_done() -> None:
    """Kernels of 100 us follow each other after 1.5, and their launches after 5; one of five steps launches nothing.

    Windows are the host's therefore. Without its waits of 91 us it launches the third kernel at 273: the five steps
    then last 10 + 100 + 101.5 us, 66.5 in which the device waits for that launch, and 100 + 101.5.
    """
    events: list[Event] = [step(150 * n, 150, n) for n in range(5)]
    for n in (0, 1, 3, 4):
        events += [
            launch(150 * n + 5, 2, n + 1),
            kernel("a", 150 * n + 10, 100, n + 1),
            wait(150 * n + 20, 150 * n + 111),
        ]
    assert saved(*events)["device syncs"] == pytest.approx(150 - 479.5 / 5)


def test_the_wait_of_another_thread_holds_nobody_up() -> None:
    loader = call("cudaEventSynchronize", 15, 40, tid=9)
    events = step(0, 60), op("aten::mm", 1, 58), launch(5, 2, 1), kernel("a", 10, 10, 1)
    (result,) = table(build(*events, loader, launch(45, 2, 2), kernel("b", 50, 20, 2)), "syncs")
    assert (result["kind"], result["blocked_ns"], result["replay_ns"]) == ("event", 40_000, 0)


def test_work_of_another_stream_is_waited_for_where_the_host_said_so() -> None:
    """B of stream 8 runs after a of stream 7: it does not come sooner though its launch does."""
    first = launch(4, 2, 1), kernel("a", 10, 80, 1), call("cudaEventSynchronize", 20, 30)
    other = call("cudaStreamWaitEvent", 60, 1), launch(62, 2, 2), kernel("b", 92, 20, 2, stream=8)
    assert saved(step(0, 70), *first, *other)["event syncs"] == 0
    alone = launch(62, 2, 2), kernel("b", 68, 60, 2, stream=8)
    assert saved(step(0, 70), *first, *alone)["event syncs"] == 30


def test_an_event_that_the_stream_has_long_passed_is_kept_until_it_is_asked_for() -> None:
    """The host waits for a while b and c are queued behind it; what delays the launch of a delays it, too."""
    first = launch(0, 1, 77), kernel("first", 1, 1, 77), call("cudaMalloc", 2, 20)
    queue = [event for n in range(3) for event in (launch(25 + n, 1, 1 + n), kernel("abc"[n], 30 + 40 * n, 40, 1 + n))]
    waits = call("cudaEventSynchronize", 40, 31)
    late = launch(200, 2, 9), kernel("d", 205, 10, 9)
    assert saved(step(0, 210), *first, *queue, waits, *late)["alloc syncs"] == 20


def test_a_head_start_from_a_step_that_does_not_count_is_not_booked_on_those_that_do() -> None:
    """Removing the 400 us wait of the partial first step would hide the late launch (70 us) of the second.

    The second step has no wait, so nothing can be removed from it.
    """
    queue = (
        kernel("before", 5, 5, 99),
        launch(10, 2, 1),
        kernel("a", 15, 5, 1),
        launch(13, 2, 2),
        kernel("b", 20, 520, 2),
    )
    late = launch(600, 2, 3), kernel("c", 610, 40, 3)
    (result,) = table(
        build(step(0, 450), *queue, call("cudaEventSynchronize", 30, 400), step(450, 200, 1), *late), "syncs"
    )
    assert (result["blocked_ns"], result["replay_ns"]) == (400_000, 0)


def test_a_wait_for_the_data_loader_is_given_back_as_far_as_the_device_waits_for_it() -> None:
    events = step(0, 55), launch(2, 2, 1), kernel("a", 7, 13, 1), annotation(LOADER, 15, 25), launch(45, 2, 2)
    assert saved(*events, kernel("b", 50, 30, 2)) == {"nothing": 0, "data loader": 25}


@pytest.mark.parametrize(("name", "batch", "least"), [(WORKERS, 40, 7), (WORKERS, 4, 28), (LOADER, 40, 28)])
def test_a_batch_that_workers_are_late_with_comes_no_earlier_than_it_did(name: str, batch: int, least: int) -> None:
    """In each of four steps of 100 the host asks for a batch, and blocks for 28 after that.

    Otherwise it asks earlier, and waits longer, but for the last step, after which it asks for no other batch.
    """
    events: list[Event] = []
    for n in range(4):
        begin, a, b = 100 * n, 2 * n + 1, 2 * n + 2
        events += [step(begin, 100, n), annotation(name, begin + 2, batch), launch(begin + 50, 2, a)]
        events += [kernel("a", begin + 55, 5, a), wait(begin + 56, begin + 84)]
        events += [launch(begin + 90, 2, b), kernel("b", begin + 95, 5, b)]
    trace = build(*events)
    rows = {row["removed"]: (row["saved_ns"] // 1000, row["most_saved_ns"] // 1000) for row in table(trace, "replay")}
    assert rows["nothing"] == (0, 0)
    assert rows["device syncs"] == (least, 28)
    assert rows["data loader"] == (batch, batch)
    assert rows["syncs and data loader"] == (batch + 28, batch + 28)


def test_nothing_removed_gives_the_step_but_for_what_nothing_explains() -> None:
    """C starts 105 us after its launch, on an idle stream: 5 are usual, and 30 more are no reason to ask."""
    first = launch(2, 2, 1), kernel("a", 7, 5, 1), launch(13, 2, 2), kernel("b", 18, 5, 2)
    events = step(0, 30), *first, launch(20, 2, 3), kernel("c", 125, 10, 3)
    (result,) = table(build(*events), "replay")  # of no more, as half of the step cannot be replayed
    assert (result["removed"], result["saved_ns"], result["step_ns"]) == ("nothing", 70_000, 65_000)


def test_without_a_device_only_the_data_loader_can_be_taken_out() -> None:
    trace = build(step(0, 100), annotation(LOADER, 10, 30), op("aten::mm", 50, 10))
    assert [result["saved_ns"] for result in table(trace, "replay")] == [0, 30_000]


@pytest.mark.parametrize(("launched", "communication_saves", "host_saves"), [(95, 1, 0), (120, 0, 24)])
def test_communication_costs_what_nothing_else_takes_and_host_time_what_the_device_waits_for(
    launched: int, communication_saves: int, host_saves: int
) -> None:
    """The all-reduce runs until 100 beside b, and c after it for 9 us, a us later or 5 us after its launch."""
    begin = max(101, launched + 5)
    before = launch(0, 2, 1), kernel("a", 5, 50, 1), launch(20, 2, 3), kernel("b", 56, 24, 3)
    waits = call("cudaStreamWaitEvent", 8, 1), call("cudaStreamWaitEvent", 93, 1)
    reduce = launch(10, 2, 2), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 56, 44, 2, stream=8)
    after = launch(launched, 2, 4), kernel("c", begin, 9, 4)
    rows = table(build(step(0, launched + 2), *before, *waits, *reduce, *after), "replay")
    results = {row["removed"]: row for row in rows}
    assert results["communication"]["saved_ns"] == 1000 * communication_saves
    assert (results["communication"]["num"], results["communication"]["blocked_ns"]) == (1, 44_000)
    assert results["host time"]["saved_ns"] == 1000 * host_saves
    assert results["host time"]["step_ns"] == 1000 * (begin + 9 - host_saves)


def test_the_time_of_a_host_that_is_ahead_counts_where_the_host_spends_it() -> None:
    """The device ends its first step at 215; its second needs what the host prepares from 100 to 250.

    Without host time the second kernel starts 1.5 us after the first, not 5 us after its launch at 250.
    """
    prepares = op("aten::normal_", 100, 150), launch(250, 2, 2), kernel("b", 255, 100, 2)
    trace = build(step(0, 100), launch(10, 2, 1), kernel("a", 15, 200, 1), step(100, 160, 1), *prepares)
    assert steps(trace).window[1].tolist() == [215_000, 355_000]
    assert replay_of(trace).without_host_time.least_ns == 255_000 - 215_000 - 1_500


def test_a_trace_without_steps_gains_nothing_of_what_the_host_does_after_the_device() -> None:
    """The last kernel ends at 95; what the host does from then on may have been the end of the program."""
    work = launch(0, 2, 1), kernel("a", 5, 10, 1), op("aten::mul", 10, 72), launch(80, 2, 2), kernel("b", 85, 10, 2)
    after = op("aten::cumsum", 100, 500)
    assert replay_of(build(*work, after)).without_host_time.least_ns == 95_000
    assert replay_of(build(step(0, 600), *work, after)).without_host_time.least_ns > 500_000


def test_what_waits_long_and_could_go_for_nothing_is_said_to_stay() -> None:
    busy = launch(1, 1, 1), kernel("a", 6, 500, 1), call("cudaEventSynchronize", 10, 40)
    trace = build(step(0, 80), *busy, launch(60, 1, 2), kernel("b", 507, 20, 2))
    (result,) = analyze(Run("", (trace,)), "syncs").findings
    assert (result.code, result.gain, result.measures["blocked_ns"]) == ("free_sync", (0, 0), 40_000)


def stalls_of(trace: Trace, kind: int) -> Any:
    """bool[H]: the host waits of a kind (-1 the loader) that take as long as an injected stall."""
    waits, calls = host_waits(trace), blocking_calls(trace)
    kinds = np.where(waits.call >= 0, calls.kind[waits.call] if len(calls) else -1, -1)
    duration = waits.end - waits.start
    return (kinds == kind) & (duration >= 1_980_000) & (duration < 2_000_000)


def savings_without_waits(*events: Event) -> tuple[float, float]:
    """(least, most) us by which a step becomes shorter without all host waits."""
    trace = build(*events)
    replay, removed = replay_of(trace), np.ones((1, len(host_waits(trace))), np.bool_)
    (saving,) = replay.saved_per_step(removed)
    return saving.least_ns / 1000, saving.most_ns / 1000


@pytest.mark.parametrize("waits_for", ["not recorded", "its event"])
def test_a_wait_between_streams_that_delayed_nothing_may_not_exist_unless_its_event_is_recorded(waits_for: str) -> None:
    """Without the wait, 30-120, b can be launched at 40: it starts at 45, or when a is done, which ran to 110."""
    record, awaits = call("cudaEventRecord", 20, 1, 5), call("cudaStreamWaitEvent", 125, 1, 6)
    events = [step(0, 140), launch(5, 2, 1), kernel("a", 10, 100, 1), record, wait(30, 120), awaits]
    events += [launch(130, 2, 2), kernel("b", 135, 200, 2, stream=8)]
    if waits_for == "its event":
        args = {"stream": 8, "correlation": 6, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 5}
        events.append(row("cuda_sync", "Stream Wait Event", 125, 1, tid=8, device=0, **args))
    least, most = savings_without_waits(*events)
    assert least == pytest.approx(25, abs=4)  # b starts as soon as a is done
    assert most == (least if waits_for == "its event" else 90)


def test_what_a_device_that_lags_behind_its_host_catches_up_with_is_no_saving_of_steps_to_come() -> None:
    """The host takes 100 us a step and launches ahead, the device 120: 50 of kernels and 70 of communication.

    Without it these three steps would take 68 us less each; later ones, without a queue, take the host's 100, unless
    that is faster when nothing is recorded.
    """
    events = [launch(2, 2, 1), kernel("early", 10, 500, 1)]
    for number in range(4):
        begin, runs = 20 + 100 * number, 512 + 120 * number
        events += [step(begin, 100, number), launch(begin + 10, 2, 10 + number), launch(begin + 20, 2, 20 + number)]
        events.append(kernel("gemm", runs, 48, 10 + number))
        events.append(kernel("ncclDevKernel_AllReduce", runs + 50, 68, 20 + number))
    trace = build(*events)
    assert steps(trace).counted.tolist() == [False, True, True, True]
    saving = replay_of(trace).without_communication
    assert (saving.least_ns, saving.most_ns) == (20_000, 68_000)


def test_delays_of_the_device_that_nothing_explains_may_be_gone_with_the_time_of_the_host() -> None:
    """Copies without a launch, 100 us apart: they may wait for the host, or for something that is not recorded.

    If they do not wait for the host, b still follows them; else they are 31.5 us apart, as far as one can be explained.
    """
    events = [step(0, 1_000), launch(5, 2, 1), kernel("a", 10, 10, 1), op("aten::slow", 10, 980)]
    events += [memcpy("DtoD", 10 + 100 * n, 10, 90 + n) for n in range(1, 10)]
    trace = build(*events, launch(995, 2, 2), kernel("b", 1_000, 5, 2))  # which the replay does not keep
    replay = replay_of(trace)
    saving = replay.without_host_time
    explained = 5 + 10 + 9 * (31.5 + 10) + 1.5 + 5
    assert (saving.least_ns / 1000, saving.most_ns / 1000) == (1_005 - 5 - 10 - 9 * 100 - 1.5 - 5, 1_005 - explained)


@cache
def host_bound_trace(name: str, after: str, a_step: int) -> tuple[list[Row], list[Row], Trace]:
    """(rows of a real trace, ops in every step after which its device waits for the host, the trace)."""
    rows = rows_of(name)
    return rows, spread(rows, after, a_step), read_trace(TRACES / name)


DDP, DLRM = ("ddp-a100/rank0.json.gz", "aten::conv2d", 3), ("dlrm-v100-8r/rank7.json.gz", "aten::linear", 5)
RESNET = ("resnet50-2021/workers0.json.gz", "aten::batch_norm", 2)
KINDS = {"item": 0, "nonzero": 0, "upload": 1, "device": 4, "load": -1}
"""A stall -> the kind of blocking call that it is, -1 for the data loader."""
STALLED = [(trace, stall) for trace in (DDP, DLRM) for stall in KINDS] + [(RESNET, "item"), (RESNET, "load")]
QUICK = [(DDP, "item"), (DLRM, "upload"), (DDP, "load")]


@pytest.mark.parametrize(
    ("trace", "stall"),
    [
        pytest.param(*each, id=f"{each[0][0][:6]}-{each[1]}", marks=[pytest.mark.slow] * (each not in QUICK))
        for each in STALLED
    ],
)
def test_without_the_injected_stalls_a_step_lasts_as_long_as_it_did_before(
    trace: tuple[str, str, int], stall: str, tmp_path: Path
) -> None:
    rows, ops, original = host_bound_trace(*trace)
    changed = read(tmp_path / "trace.json", with_stalls(rows, ops, 2000, stall))
    is_mine = stalls_of(changed, KINDS[stall])
    assert is_mine.sum() == len(ops)
    windows = [result.window[:, 1] - result.window[:, 0] for result in (steps(original), steps(changed))]
    assert (windows[1] - windows[0] > 0.99 * trace[2] * 2_000_000).all()
    assert windows[1] - replay_of(changed).without_waits(is_mine[None])[0] == pytest.approx(windows[0], rel=0.02)


def read(path: Path, rows: Sequence[Row]) -> Trace:
    path.write_bytes(msgspec.json.encode({"traceEvents": rows}))
    return read_trace(path)
