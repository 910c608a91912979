"""Calls in which the host may wait: which there are, and for which work."""

from __future__ import annotations

import pytest
from builder import OTHER, Event, build, call, kernel, launch, memcpy, op, step

from traceq.causes.edges import early_waits
from traceq.causes.holds import HoldKind, HostHolds, holds, launch_queue_length
from traceq.facts.events.device_work import device_work
from traceq.model import Trace


def kinds_and_work(trace: Trace, queue_length: int = 0) -> list[tuple[HoldKind, int, list[str]]]:
    """(kind, start in us, names of what it waits for) of each hold, by start."""
    result: HostHolds = holds(trace, queue_length, for_replay=False)
    work = device_work(trace)
    awaited = [
        [trace.events.text(int(work.rows[unit])) for unit in result.work[result.wait == hold].tolist()]
        for hold in range(len(result))
    ]
    columns = zip(result.kind.tolist(), (result.start // 1000).tolist(), awaited, strict=True)
    return sorted(((HoldKind(kind), start, names) for kind, start, names in columns), key=lambda hold: hold[1])


def two_streams(*rows: Event) -> Trace:
    """Kernels on two streams that end at 60 and at 90."""
    launched = [launch(2, 2, 1), launch(5, 2, 2), kernel("near", 10, 50, 1), kernel("far", 10, 80, 2, stream=20)]
    return build(op("forward", 0, 200), *launched, *rows)


def test_a_device_synchronize_waits_for_every_stream_even_where_it_did_not_block() -> None:
    late, early = (two_streams(call("cudaDeviceSynchronize", begin, dur)) for begin, dur in ((100, 2), (20, 72)))
    for trace, begin in ((late, 100), (early, 20)):
        ((kind, start, awaited),) = kinds_and_work(trace)
        assert (kind, start, sorted(awaited)) == (HoldKind.DEVICE, begin, ["far", "near"])


def test_every_copy_call_is_a_hold_and_of_those_to_the_host_each_waits_for_its_copy() -> None:
    copies = [
        *(call("cudaMemcpyAsync", 110, 4, 3), memcpy("DtoH (Device -> Pinned)", 120, 2, 3)),
        *(call("cudaMemcpyAsync", 130, 4, 4), memcpy("DtoD (Device -> Device)", 140, 2, 4)),
    ]
    assert kinds_and_work(two_streams(*copies)) == [
        (HoldKind.DTOH, 110, ["Memcpy DtoH (Device -> Pinned)"]),
        (HoldKind.COPY, 130, []),
    ]


@pytest.mark.parametrize(
    ("name", "until", "awaited"), [("cudaFree", 95, True), ("cudaFree", 30, False), ("cudaMalloc", 95, False)]
)
def test_a_free_waits_for_every_stream_if_that_was_over_and_an_allocation_for_nothing(
    name: str, until: int, awaited: bool
) -> None:
    ((kind, _, names),) = kinds_and_work(two_streams(call(name, 20, until - 20)))
    assert (kind, sorted(names)) == (HoldKind.ALLOC, ["far", "near"] if awaited else [])


@pytest.mark.parametrize(
    ("until", "awaited"), [(2100, True), (9000, False), (1900, False)], ids=["idle", "loads on", "not idle yet"]
)
def test_a_launch_that_loads_waits_for_all_work_if_the_device_is_idle_by_then(until: int, awaited: bool) -> None:
    running = [launch(2, 2, 1), kernel("ncclKernel_AllReduce", 10, 1990, 1, stream=20)]
    loading = [launch(20, until - 20, 2), kernel("new", until + 5, 10, 2)]
    again = [row for n in (3, 4, 5) for row in (launch(n * 20_000, 5, n), kernel("new", n * 20_000 + 10, 10, n))]
    ((kind, start, names),) = kinds_and_work(build(op("forward", 0, 200_000), *running, *loading, *again))
    assert (kind, start, names) == (HoldKind.LOAD, 20, ["ncclKernel_AllReduce"] if awaited else [])


def reading(*busy_in: int) -> Trace:
    """Three rounds of 1,000: a thread waits for a result from 5 to 603, the host is silent from 40 to 1,000.

    It is in an op meanwhile in the rounds in which it is busy.
    """
    rows = [step(0, 3_100), op("aten::mm", 3_000, 40)]
    for n, start in enumerate(range(0, 3_000, 1_000)):
        rows += [op("aten::mm", start, 40), launch(start + 10, 5, 2 * n + 1), kernel("mm", start + 20, 570, 2 * n + 1)]
        rows += [
            call("cudaMemcpyAsync", start + 30, 5, 2 * n + 2),
            memcpy("DtoH (Device -> Pinned)", start + 595, 5, 2 * n + 2),
        ]
        rows += [call("cudaEventSynchronize", start + 5, 598, tid=OTHER)]
        rows += [op("aten::add", start + 550, 100)] * (n in busy_in)
    return build(*rows)


@pytest.mark.parametrize(("busy_in", "starts"), [([], [40, 1_040, 2_040]), ([0], [1_040, 2_040]), ([0, 1], [])])
def test_a_host_waits_for_a_thread_that_reads_results_unless_it_is_mostly_busy_then(
    busy_in: list[int], starts: list[int]
) -> None:
    waits = [wait for wait in kinds_and_work(reading(*busy_in)) if wait[0] == HoldKind.THREAD]
    assert waits == [(HoldKind.THREAD, start, ["Memcpy DtoH (Device -> Pinned)"]) for start in starts]


def queue(num: int, blocked_from: int, blocked_us: float) -> Trace:
    """Launches every 2 us of kernels that each take 100; from one on each call takes longer."""
    rows, begin = list[Event](), 0.0
    for number in range(num):
        dur = blocked_us if number >= blocked_from else 1
        rows += [launch(begin, dur, number + 1), kernel("gemm", 10 + 100 * number, 100, number + 1)]
        begin += dur + 1
    return build(*rows)


def test_a_queue_is_full_where_calls_block_with_as_many_launches_outstanding() -> None:
    """The call with the number 1,000 ends after 2,099 us, when 20 kernels are done: 980 are outstanding.

    From then on a kernel ends in 100 us, and a call in 100.
    """
    trace = queue(1040, 1000, 99)
    assert launch_queue_length(trace) == 980
    blocked = [kind for kind, _, _ in kinds_and_work(trace, 980) if kind == HoldKind.QUEUE]
    assert len(blocked) == 1040
    assert kinds_and_work(trace) == []


@pytest.mark.parametrize(
    ("num", "blocked_from", "blocked_us"),
    [(1040, 1000, 40), (1015, 1000, 99), (840, 800, 99)],
    ids=["calls too short", "too few calls", "too few outstanding"],
)
def test_slow_launches_alone_are_no_full_queue(num: int, blocked_from: int, blocked_us: float) -> None:
    assert launch_queue_length(queue(num, blocked_from, blocked_us)) == 0


def before_the_window(*works: tuple[str, int, float, float]) -> Trace:
    """Work of (name, stream, start, duration) that no call launched, before work on both streams that a call did."""
    rows = [kernel(name, start, dur, stream=stream) for name, stream, start, dur in works]
    for number, stream in enumerate((7, 20), 1):
        rows += [launch(200 + 20 * number, 5, number), kernel("later", 300, 5, number, stream=stream)]
    return build(*rows)


@pytest.mark.parametrize(
    ("start", "expected"),
    [(101, [("second", "first")]), (111, [("second", "first")]), (113, []), (99, [])],
)
def test_work_from_before_the_window_waits_for_what_ended_just_before_on_another_stream(
    start: float, expected: list[tuple[str, str]]
) -> None:
    """`first` ends at 100; up to 12 later is no coincidence."""
    trace = before_the_window(("first", 7, 10, 90), ("second", 20, start, 30))
    work = device_work(trace)
    waiting, awaited = early_waits(work)
    names = [
        tuple(trace.events.text(int(work.rows[index])) for index in pair)
        for pair in zip(waiting.tolist(), awaited.tolist(), strict=True)
    ]
    assert names == expected


def test_work_that_follows_its_stream_at_once_waits_for_no_other() -> None:
    """Its stream's work ends at 100.5, later than that of the other, but for a us."""
    trace = before_the_window(("first", 7, 10, 90), ("own", 20, 10, 90.5), ("second", 20, 102, 30))
    assert [column.tolist() for column in early_waits(device_work(trace))] == [[], []]
