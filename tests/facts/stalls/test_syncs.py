"""Which calls make the host wait, for how long, and what it costs the device."""

from __future__ import annotations

from typing import Any

import pytest
from builder import Event, annotation, build, call, frame, kernel, launch, memcpy, op, row, step, table

PINNED, PAGEABLE = "DtoH (Device -> Pinned)", "DtoH (Device -> Pageable)"


def syncs(*events: Event) -> list[tuple[str, int, int]]:
    """(kind, blocked us, waited us) of each row."""
    rows = table(build(step(0, 1000), *events), "syncs")
    return [(result["kind"], result["blocked_ns"] // 1000, result["wait_ns"] // 1000) for result in rows]


def copy(
    kind: str, start: int, dur: int, *, api: str = "cudaMemcpyAsync", start_call: int = 40, takes: int = 5
) -> list[Event]:
    """A copying call and its copy."""
    return [call(api, start_call, takes, 2), memcpy(kind, start, dur, 2)]


def wait(name: str, start: Any, dur: Any, **more: Any) -> Event:
    return call(name, start, dur, **more)


def test_a_copy_and_the_synchronize_after_it_are_one_sync() -> None:
    result = table(build(step(0, 100), *copy(PINNED, 60, 2), wait("cudaStreamSynchronize", 45, 27)), "syncs")
    assert len(result) == 1
    assert (result[0]["kind"], result[0]["call"], result[0]["num"], result[0]["bytes"]) == (
        "dtoh",
        "cudaMemcpyAsync",
        1,
        8,
    )
    assert (result[0]["blocked_ns"], result[0]["wait_ns"]) == (32_000, 22_000)


@pytest.mark.parametrize(("gap", "kinds"), [(50, ["dtoh"]), (50.001, ["stream"])])
def test_the_synchronize_belongs_to_the_copy_up_to_50_us_later(gap: float, kinds: list[str]) -> None:
    assert [kind for kind, *_ in syncs(*copy(PINNED, 42, 2), wait("cudaStreamSynchronize", 45 + gap, 9))] == kinds


def test_a_call_between_copy_and_synchronize_keeps_them_apart() -> None:
    between = launch(46, 1, 3)
    assert syncs(*copy(PINNED, 42, 2), between, wait("cudaStreamSynchronize", 48, 9)) == [("stream", 9, 0)]


def test_a_synchronize_of_another_thread_is_not_the_copys() -> None:
    assert syncs(*copy(PINNED, 42, 2), wait("cudaStreamSynchronize", 46, 9, tid=2)) == [("stream", 9, 0)]


@pytest.mark.parametrize(("name", "kind"), [("cudaDeviceSynchronize", "device"), ("cudaEventSynchronize", "event")])
def test_a_device_or_event_synchronize_never_merges_with_a_copy(name: str, kind: str) -> None:
    result = syncs(*copy(PINNED, 42, 10), wait(name, 46, 9), launch(90, 1, 9), kernel("later", 95, 1, 9))
    assert result == [(kind, 9, 6)]


def test_a_device_synchronize_waits_for_work_launched_before_the_trace() -> None:
    running, queued, later = kernel("running", 5, 10, 91), kernel("queued", 30, 20, 92), kernel("later", 60, 5, 3)
    wait_for_both = wait("cudaDeviceSynchronize", 10, 45), launch(57, 1, 3)
    assert syncs(running, queued, *wait_for_both, later) == [("device", 45, 40)]


def test_a_pageable_copy_that_is_over_when_its_call_returns_has_waited() -> None:
    assert syncs(*copy(PAGEABLE, 50, 11, takes=22)) == [("dtoh", 22, 21)]
    assert syncs(*copy("HtoD (Pageable -> Device)", 50, 11, takes=22)) == [("htod", 22, 21)]


def test_no_wait_is_longer_than_its_call_though_clocks_disagree() -> None:
    assert syncs(*copy(PAGEABLE, 50, 30, takes=22)) == [("dtoh", 22, 22)]


def test_a_staged_copy_that_ends_long_after_its_call_has_not_waited() -> None:
    assert syncs(*copy(PAGEABLE, 44, 60)) == []
    assert syncs(*copy(PAGEABLE, 46, 2)) == []


def test_a_pinned_asynchronous_copy_never_waits() -> None:
    assert syncs(*copy(PINNED, 41, 2, takes=20)) == []


@pytest.mark.parametrize("api", ["hipMemcpyWithStream", "cudaMemcpy"])
def test_a_synchronous_copy_waits_without_any_synchronize(api: str) -> None:
    assert syncs(*copy(PINNED, 50, 11, api=api, takes=22)) == [("dtoh", 22, 21)]


def test_a_copy_on_the_device_is_no_sync() -> None:
    assert syncs(*copy("DtoD (Device -> Device)", 41, 2, api="cudaMemcpy")) == []


@pytest.mark.parametrize("reader", ["aten::_local_scalar_dense", "aten::nonzero"])
def test_what_rocm_copies_within_the_device_and_waits_for_is_read_by_the_host(reader: str) -> None:
    """ROCm names a copy to pinned memory so; of torch only ops that read a value, and copies, make it."""
    read = copy("DtoD (Device -> Device)", 50, 11, api="hipMemcpyWithStream", takes=22)
    assert syncs(*read) == []
    assert syncs(op(reader, 39, 40), *read) == [("dtoh", 22, 21)]
    assert syncs(op("aten::copy_", 39, 40), *read) == []


def test_the_profilers_own_last_synchronize_does_not_count() -> None:
    its_own = wait("cudaDeviceSynchronize", 1010, 5)
    events = (launch(5, 1, 1), kernel("a", 10, 25, 1), wait("cudaDeviceSynchronize", 30, 9))
    assert syncs(*events, its_own) == [("device", 9, 5)]
    assert syncs(launch(5, 1, 1), kernel("a", 10, 25, 1), its_own) == []


def test_a_synchronize_inside_a_step_is_never_the_profilers() -> None:
    events = (launch(5, 1, 1), kernel("a", 10, 25, 1), wait("cudaDeviceSynchronize", 30, 9))
    assert syncs(*events) == [("device", 9, 5)]


def test_the_last_synchronize_of_a_trace_without_steps_is_the_profilers_and_the_one_before_it_the_jobs() -> None:
    """The wait for 17.1 ms with which a recording of a ResNet ended counted as a sync of the job."""
    work = launch(5, 1, 1), kernel("a", 10, 25, 1)
    waits, waits_not = wait("cudaDeviceSynchronize", 20, 16), wait("cudaDeviceSynchronize", 40, 5)
    assert table(build(*work, waits), "syncs") == []
    assert [row["kind"] for row in table(build(*work, waits, waits_not), "syncs")] == ["device"]


def test_where_frames_tell_the_profilers_synchronize_the_last_one_left_is_the_jobs() -> None:
    work = launch(5, 1, 1), kernel("a", 10, 25, 1)
    stops = frame("torch/profiler/profiler.py(812): stop", 38, 20), wait("cudaDeviceSynchronize", 40, 5)
    assert [row["kind"] for row in table(build(*work, wait("cudaDeviceSynchronize", 20, 16), *stops), "syncs")] == [
        "device"
    ]


def test_a_stream_of_another_device_is_another_stream() -> None:
    here, there = (launch(1, 1, 1), launch(3, 1, 2)), {"correlation": 5, "stream": 7, "device": 1}
    work = kernel("here", 10, 40, 1, stream=7), kernel("there", 10, 20, 2, stream=7, device=1)
    waits = wait("cudaStreamSynchronize", 20, 50, corr=5), row("cuda_sync", "Stream Sync", 20, 1, **there)
    assert syncs(*here, *work, *waits) == [("stream", 50, 10)]


def test_a_copy_waits_for_itself_and_not_for_what_else_ends_meanwhile() -> None:
    other = launch(1, 1, 1), kernel("other stream", 10, 50, 1, stream=9)
    assert syncs(*other, *copy(PAGEABLE, 50, 2, takes=22)) == [("dtoh", 22, 12)]


def test_a_device_synchronize_waits_for_what_was_launched_before_it() -> None:
    selected, others = (launch(1, 1, 1), kernel("a", 10, 40, 1)), (launch(35, 1, 2, tid=9), kernel("b", 50, 8, 2))
    assert syncs(
        *selected, *others, wait("cudaDeviceSynchronize", 30, 30), launch(70, 1, 3), kernel("c", 72, 1, 3)
    ) == [("device", 30, 20)]


def test_a_stream_named_by_its_cuda_sync_row_is_the_one_waited_for() -> None:
    events = (
        launch(1, 1, 1),
        kernel("short", 10, 20, 1, stream=7),
        launch(3, 1, 2),
        kernel("long", 10, 40, 2, stream=9),
        wait("cudaStreamSynchronize", 20, 50, corr=5),
    )
    assert syncs(*events) == [("stream", 50, 30)]  # unknown: the latest end before the call returns
    assert syncs(*events, row("cuda_sync", "Stream Sync", 20, 1, correlation=5, stream=7)) == [("stream", 50, 10)]


def event_sync(corr: int, **fields: int) -> Event:
    """The `cuda_sync` row of an event synchronize, which names no stream."""
    return row("cuda_sync", "Event Sync", 20, 50, tid=-1, correlation=corr, stream=-1, device=0, **fields)


RECORDED = (
    launch(1, 1, 1),
    kernel("before", 10, 20, 1, stream=9),
    call("cudaEventRecord", 3, 1, 2),
    launch(5, 1, 3),
    kernel("after", 30, 10, 3, stream=9),
    launch(7, 1, 4),
    kernel("elsewhere", 10, 50, 4, stream=7),
    call("cudaEventRecord", 9, 1, 5),
    wait("cudaEventSynchronize", 20, 50, corr=6),
)
ON_STREAM_9 = {"wait_on_stream": 9, "wait_on_cuda_event_record_corr_id": 2}


@pytest.mark.parametrize(
    ("reported", "waited"),
    [
        (ON_STREAM_9, 10),
        ({"wait_on_stream": 9, "wait_on_cuda_event_record_corr_id": 5}, 20),
        ({"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 5}, 40),
        ({"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2}, 0),
        ({"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}, 40),
        ({"wait_on_stream": 9, "wait_on_cuda_event_record_corr_id": 77}, 40),
        ({}, 40),
    ],
    ids=["the first record", "the second", "another stream", "nothing yet", "unresolved", "before the trace", "untold"],
)
def test_an_event_synchronize_waits_for_what_was_on_the_stream_when_its_event_was_recorded(
    reported: dict[str, int], waited: int
) -> None:
    """Untold, and on CUDA 12.9 and later: whatever had ended by the return of the call, here at 60."""
    assert syncs(*RECORDED, event_sync(6, **reported)) == [("event", 50, waited)]


def test_a_row_tells_only_of_the_call_of_its_own_correlation() -> None:
    assert syncs(*RECORDED, event_sync(8, **ON_STREAM_9)) == [("event", 50, 40)]


def cost(*events: Event) -> tuple[int, int]:
    """(starved us, cost us) of the only sync."""
    (result,) = table(build(step(0, 80), *events), "syncs")
    return result["starved_ns"] // 1000, result["cost_ns"] // 1000


SYNC = (launch(5, 3, 1), kernel("a", 10, 10, 1))


def test_a_sync_costs_the_idle_device_time_until_the_next_launch_at_most_what_it_blocked() -> None:
    late = wait("cudaDeviceSynchronize", 15, 25), launch(50, 5, 2), kernel("b", 58, 12, 2)
    assert cost(*SYNC, *late) == (38, 25)
    soon = wait("cudaDeviceSynchronize", 15, 7), launch(22, 1, 2), kernel("b", 24, 12, 2)
    assert cost(*SYNC, *soon) == (4, 3)


def test_a_sync_that_leaves_the_device_busy_costs_nothing() -> None:
    busy = launch(8, 1, 3), kernel("other stream", 10, 60, 3, stream=8)
    assert cost(*SYNC, *busy, wait("cudaEventSynchronize", 15, 7), launch(22, 1, 2), kernel("b", 24, 12, 2)) == (0, 0)


def test_one_sync_does_not_pay_for_the_next() -> None:
    rows = table(
        build(
            step(0, 90),
            *SYNC,
            wait("cudaStreamSynchronize", 15, 10),
            wait("cudaEventSynchronize", 30, 10),
            launch(50, 5, 2),
            kernel("b", 55, 12, 2),
        ),
        "syncs",
    )
    starved = {result["kind"]: result["starved_ns"] // 1000 for result in rows}
    assert starved == {"stream": 10, "event": 25}


@pytest.mark.parametrize(("start", "idle"), [(15, 20), (30, 10)])
def test_an_allocation_waits_for_nothing_and_costs_the_idle_time_inside_it(start: int, idle: int) -> None:
    events = (*SYNC, wait("cudaMalloc", start, 40 - start), launch(50, 5, 2), kernel("b", 58, 9, 2))
    (result,) = table(build(step(0, 80), *events), "syncs")
    assert (result["kind"], result["wait_ns"]) == ("alloc", 0)
    assert (result["starved_ns"], result["cost_ns"]) == (idle * 1000, idle * 1000)


@pytest.mark.parametrize(
    ("events", "label"),
    [
        ((wait("cudaEventSynchronize", 15, 15), launch(40, 1, 2), kernel("b", 45, 1, 2)), "costly"),
        ((wait("cudaEventSynchronize", 15, 6), launch(21, 1, 2), kernel("b", 22, 1, 2)), "harmless"),
        (
            (
                launch(8, 1, 3),
                kernel("busy", 10, 12_000, 3, stream=8),
                kernel("long", 20, 9, 1),
                wait("cudaEventSynchronize", 15, 15),
                launch(40, 1, 2),
                kernel("b", 45, 1, 2),
            ),
            "waits_but_free",
        ),
    ],
)
def test_a_row_is_labelled_by_what_its_removal_saves_against_a_thousandth_of_the_step(
    events: tuple[Event, ...], label: str
) -> None:
    (result,) = table(build(step(0, 10_000), *SYNC, *events), "syncs")
    assert result["label"] == label


def test_a_read_that_takes_less_than_a_microsecond_is_named_as_any_other() -> None:
    """Older traces have whole microseconds: all three ops begin at 12, and the inner one takes none."""
    reads = op("aten::one_hot", 12, 3), op("aten::item", 12, 1), op("aten::_local_scalar_dense", 12, 0)
    (result,) = table(build(step(0, 100), *reads), "syncs")
    assert (result["op"], result["num"]) == ("aten::_local_scalar_dense", 1)


def test_on_a_cpu_the_same_line_of_code_is_a_scalar_read_at_no_cost() -> None:
    read = op("aten::_local_scalar_dense", 12, 2)
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    for marks in (("Optimizer.step#Adam.step", loader), ("dataload_wait",)):
        local = [annotation(mark, 50 + 10 * number, 9) for number, mark in enumerate(marks)]
        local += [op("aten::_local_scalar_dense", 52 + 10 * number, 2) for number in range(len(marks))]
        (result,) = table(build(step(0, 100), op("aten::item", 10, 5), read, *local), "syncs")
        assert (result["kind"], result["num"], result["blocked_ns"], result["cost_ns"]) == ("scalar", 1, 2_000, 0)
    assert table(build(step(0, 100), read, launch(1, 1, 1), kernel("a", 5, 1, 1)), "syncs") == []


def test_a_batch_that_is_checked_behind_its_loader_is_read_from_the_device() -> None:
    loading = annotation("dataload_wait", 5, 30), annotation("enumerate(DataLoader)#__next__", 6, 10)
    reads = [op("aten::_local_scalar_dense", start, 2) for start in (8, 20)]
    (result,) = table(build(step(0, 100), *loading, *reads), "syncs")
    assert result["num"] == 1


@pytest.mark.parametrize(("around", "num"), [("std", 0), ("var", 0), ("_assert_async", 0), ("histc", 1)])
def test_what_a_gpu_computes_or_checks_on_the_device_is_no_sync_there(around: str, num: int) -> None:
    """On a CPU the deviation of all elements reads their mean; multinomial checks its probabilities."""
    reads = op(f"aten::{around}", 10, 20), op("aten::item", 12, 5), op("aten::_local_scalar_dense", 13, 3)
    assert len(table(build(step(0, 100), op("aten::multinomial", 5, 40), *reads), "syncs")) == num


def test_what_ddp_reads_of_its_map_of_used_parameters_is_on_the_host() -> None:
    """With find_unused_parameters one read per parameter comes before its gradient is copied out of the bucket."""
    search, copies = map(
        "torch.distributed.ddp.reducer::{}".format, ("search_unused_parameters", "copy_bucket_to_grad")
    )
    of_ddp = [op("aten::item", 10, 5), op("aten::_local_scalar_dense", 11, 3), op(copies, 16, 4)]
    of_loop = [
        op("aten::item", 30, 5),
        op("aten::_local_scalar_dense", 31, 3),
        op("aten::add", 36, 2),
        op(copies, 40, 4),
    ]
    (result,) = table(build(step(0, 100), op(search, 5, 2), *of_ddp, *of_loop), "syncs")
    assert result["num"] == 1
    (result,) = table(build(step(0, 100), *of_ddp, *of_loop), "syncs")
    assert result["num"] == 2  # nothing was searched: a hook read it


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hipStreamSynchronize", "stream"),
        ("hipEventSynchronize", "event"),
        ("hipDeviceSynchronize", "device"),
        ("cuStreamSynchronize", "stream"),
        ("cuCtxSynchronize", "device"),
        ("cudaFree", "alloc"),
        ("cudaHostAlloc", "alloc"),
        ("hipMalloc", "alloc"),
        ("hipExtMallocWithFlags", "alloc"),
    ],
)
def test_a_call_that_blocks_is_told_by_its_name_whatever_the_vendor(name: str, kind: str) -> None:
    later = launch(90, 1, 9), kernel("later", 95, 1, 9)
    assert [result for result, *_ in syncs(launch(5, 1, 1), kernel("a", 10, 25, 1), wait(name, 20, 30), *later)] == [
        kind
    ]


@pytest.mark.parametrize("name", ["cudaMallocAsync", "cudaFreeAsync", "cudaStreamWaitEvent", "cudaEventQuery"])
def test_a_call_that_only_queues_or_asks_is_no_sync(name: str) -> None:
    assert syncs(launch(5, 1, 1), kernel("a", 10, 25, 1), wait(name, 20, 30)) == []


@pytest.mark.parametrize(
    ("ops", "result"),
    [
        (("aten::is_nonzero", "aten::item", "aten::_local_scalar_dense"), "aten::_local_scalar_dense"),
        (("aten::to", "aten::_to_copy", "aten::copy_"), "aten::copy_"),
        (("aten::index", "aten::nonzero"), "aten::nonzero"),
        (("aten::masked_select", "aten::nonzero", "aten::copy_"), "aten::copy_"),
    ],
)
def test_each_way_to_read_a_tensor_stands_with_the_op_that_copies(ops: tuple[str, ...], result: str) -> None:
    around = [op(name, 38 + depth, 60 - 2 * depth) for depth, name in enumerate(ops)]
    (row,) = table(build(step(0, 200), *around, *copy(PINNED, 60, 2), wait("cudaStreamSynchronize", 46, 27)), "syncs")
    assert (row["kind"], row["op"]) == ("dtoh", result)


def test_a_rate_limiter_that_waits_for_an_event_long_queued_is_free() -> None:
    """FSDP1: the host waits for the gather before last, while two layers of work are queued behind it."""
    names = ("gather", "layer", "layer")
    queue = [part for n, name in enumerate(names) for part in (launch(5 + n, 1, n), kernel(name, 10 + 300 * n, 300, n))]
    late = wait("cudaEventSynchronize", 20, 295), launch(320, 1, 9), kernel("layer", 910, 50, 9)
    (row,) = table(build(step(0, 330), *queue, *late), "syncs")
    assert (row["kind"], row["wait_ns"], row["return_ns"]) == ("event", 290_000, 5_000)
    assert (row["cost_ns"], row["replay_ns"], row["label"]) == (0, 0, "waits_but_free")
