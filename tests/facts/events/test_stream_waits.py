"""Work that waits for work of another stream: what the trace records of it, and what it does not."""

from __future__ import annotations

import pytest
from builder import Event, build, call, kernel, launch, memcpy, row, step

from traceq.facts.events.device_work import device_work
from traceq.facts.events.stream_waits import stream_waits


def waits_of(*events: Event) -> list[tuple[str, str]]:
    """(the work that waits, the work it waits for), by name."""
    trace = build(*events)
    edges, rows = stream_waits(trace), device_work(trace).rows
    names = [[trace.events.text(int(row)) for row in rows[side]] for side in (edges.work, edges.on)]
    return list(zip(*names, strict=True))


def recorded(stream: int, record: int) -> list[Event]:
    """Stream 9 runs c after an event recorded on `stream` by the call `record`; a and b run on streams 7 and 8."""
    names = {"wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": record}
    first = launch(2, 1, 1), kernel("a", 7, 10, 1, stream=7), launch(4, 1, 2), kernel("b", 9, 20, 2, stream=8)
    events = call("cudaEventRecord", 10, 1, 20), launch(12, 1, 3), kernel("a2", 18, 3, 3, stream=7)
    wait = (
        call("cudaStreamWaitEvent", 15, 1, 30),
        row("cuda_sync", "Stream Wait Event", 15, 1, correlation=30, stream=9),
    )
    wait[1]["args"] |= {"device": 0, **names}
    return [step(0, 60), *first, *events, *wait, launch(17, 1, 4), kernel("c", 45, 5, 4, stream=9)]


@pytest.mark.parametrize(
    ("stream", "record", "expected"),
    [
        (8, 20, [("c", "b")]),
        (7, 20, [("c", "a")]),  # a2 was launched after the event
        (7, 99, [("c", "a2"), ("c", "b")]),  # no such recording in the trace: whatever streams had been given before
        (-1, -1, [("c", "a2"), ("c", "b")]),
    ],
)
def test_a_recorded_event_says_what_a_stream_waits_for(
    stream: int, record: int, expected: list[tuple[str, str]]
) -> None:
    assert sorted(waits_of(*recorded(stream, record))) == expected


@pytest.mark.parametrize("name", ["cudaMemcpyAsync", "cudaGraphLaunch"])
def test_the_second_half_of_a_copy_by_way_of_the_host_waits_for_the_first(name: str) -> None:
    """It begins 14 later, which coincides with nothing. In a graph they are copies of their own."""
    first = launch(0, 1, 1), kernel("a", 5, 500, 1, stream=16)
    halves = memcpy("DtoH (Device -> Device)", 510, 2, 2, 16), memcpy("HtoD (Device -> Device)", 526, 2, 2, 9)
    expected = [("Memcpy HtoD (Device -> Device)", "Memcpy DtoH (Device -> Device)")] * (name == "cudaMemcpyAsync")
    assert waits_of(step(0, 600), *first, call(name, 2, 1, 2), *halves) == expected


@pytest.mark.parametrize(("launches", "copied"), [("cudaGraphLaunch", 71), ("cudaGraphLaunch", 95), ("run", 71)])
def test_work_behind_a_graph_waits_for_it_on_whatever_stream_that_runs(launches: str, copied: int) -> None:
    """A copy of 4 us waited 47.2 ms for a graph, and the path told its launch as slow; at 95 it does not follow."""
    graph = call(launches, 2, 3, 1), kernel("a", 10, 20, 1, stream=164), kernel("b", 31, 39, 1, stream=164)
    copy = call("cudaMemcpyAsync", 6, 1, 2), memcpy("HtoD (Pinned -> Device)", copied, 2, 2, 7)
    waits = waits_of(step(0, 100), launch(0, 1, 3), kernel("early", 3, 1, 3), *graph, *copy)
    is_behind = launches == "cudaGraphLaunch" and copied == 71
    assert [pair for pair in waits if pair[1] != "a"] == [("Memcpy HtoD (Pinned -> Device)", "b")] * is_behind


def test_of_very_many_streams_a_call_waits_for_those_that_ended_last() -> None:
    num, num_waits = 200, 50
    given_before = [
        event
        for index in range(num)
        for event in (launch(2 * index, 1, index + 1), kernel(f"s{index}", 2 * index + 1, 1, index + 1, stream=index))
    ]
    waiting = [
        event
        for start, corr in ((1000 + 4 * index, 1000 + index) for index in range(num_waits))
        for event in (
            call("cudaStreamWaitEvent", start, 1, 5000 + corr),
            launch(start + 2, 1, corr),
            kernel("w", start + 3, 50_000, corr, stream=corr),
        )
    ]
    waits = waits_of(step(0, 70_000), *given_before, *waiting)
    assert len(waits) == 64 * num_waits
    assert {on for _, on in waits} == {f"s{index}" for index in range(num - 64, num)}
