"""The critical path of a step: exact on a few lines, as a slow walk finds it, and beside HTA's."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from builder import OTHER, Event, annotation, build, call, kernel, launch, memcpy, op, read_text, step, table, text
from paths import TRACES
from simulator import a_job, run_of

from traceq.causes.critical_path import PathKind, critical_path
from traceq.causes.edges import EdgeKind
from traceq.causes.replay import replay_of
from traceq.facts.events.device_work import device_work
from traceq.facts.timeline.steps import steps
from traceq.kineto.read import read_trace
from traceq.model import Trace

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def path(*events: Event) -> list[tuple[str, str, float]]:
    """(kind, name, us) of the pieces in order."""
    path = critical_path(build(*events))
    ns = path.parts[:, 1] - path.parts[:, 0]
    pieces = zip(path.kind.tolist(), path.name.tolist(), ns.tolist(), strict=True)
    return [(PathKind(on).name.lower(), path.texts[name], each / 1000) for on, name, each in pieces]


def test_a_host_that_keeps_its_device_waiting_is_the_path() -> None:
    """Mm runs on the host 10-30 and launches b, the last, at 28."""
    events = step(0, 32), launch(2, 1, 1), kernel("a", 7, 4, 1), op("aten::mm", 10, 20), launch(28, 1, 2)
    assert path(*events, kernel("b", 33, 20, 2)) == [
        ("python", "", 10),
        ("host_op", "aten::mm", 18),
        ("launch_latency", "", 5),
        ("kernel", "b", 20),
    ]


def test_an_op_that_asks_the_driver_for_memory_is_on_the_path_by_its_own_time_alone() -> None:
    """A call of another thread meanwhile is none of it."""
    events = step(0, 32), launch(2, 1, 1), kernel("a", 7, 4, 1), op("aten::bmm", 10, 20), launch(28, 1, 2)
    calls = call("cudaMalloc", 12, 6), call("cudaFree", 20, 5, tid=OTHER)
    assert path(*events, *calls, kernel("b", 33, 20, 2)) == [
        ("python", "", 10),
        ("host_op", "aten::bmm", 2),
        ("allocation", "aten::bmm", 6),
        *(("host_op", "aten::bmm", us) for us in (2, 5, 3)),
        ("launch_latency", "", 5),
        ("kernel", "b", 20),
    ]


def test_a_kernel_that_spins_is_no_work_on_the_path() -> None:
    spin = kernel("at::cuda::(anonymous namespace)::spin_kernel(long)", 7, 40, 1)
    events = step(0, 20), launch(2, 1, 1), spin, launch(5, 1, 2), kernel("b", 47, 20, 2)
    assert ("spin_wait", spin["name"], 40) in path(*events)


def test_a_device_that_is_behind_is_the_path_from_the_first_launch() -> None:
    events = step(0, 20), launch(2, 1, 1), kernel("a", 7, 40, 1), launch(5, 1, 2)
    assert path(*events, kernel("b", 49, 20, 2)) == [
        ("python", "", 2),
        ("launch_latency", "", 5),
        ("kernel", "a", 40),
        ("queue", "", 2),
        ("kernel", "b", 20),
    ]


def test_a_sync_leads_the_path_from_the_host_to_the_work_that_it_waits_for() -> None:
    waits = op("aten::item", 10, 45), call("cudaMemcpyAsync", 12, 3, 2), memcpy("DtoH (Device -> Pinned)", 47, 2, 2)
    events = step(0, 60), launch(2, 1, 1), kernel("a", 7, 40, 1), *waits, call("cudaStreamSynchronize", 16, 37)
    assert path(*events, launch(58, 1, 3), kernel("b", 63, 7, 3)) == [
        ("python", "", 2),
        ("launch_latency", "", 5),
        ("kernel", "a", 40),
        ("copy", "Memcpy DtoH (Device -> Pinned)", 2),
        ("sync_return", "aten::item", 4),
        ("host_op", "aten::item", 2),
        ("python", "", 3),
        ("launch_latency", "", 5),
        ("kernel", "b", 7),
    ]


def test_work_that_waits_for_another_stream_leads_the_path_there() -> None:
    events = step(0, 20), launch(2, 1, 1), kernel("reduce", 7, 60, 1, stream=8), launch(4, 1, 2), kernel("a", 9, 5, 2)
    waits = call("cudaStreamWaitEvent", 10, 1), launch(12, 1, 3), kernel("b", 68, 10, 3)
    assert path(*events, *waits) == [
        ("python", "", 2),
        ("launch_latency", "", 5),
        ("kernel", "reduce", 60),
        ("queue", "", 1),
        ("kernel", "b", 10),
    ]


def silent(until: int, began: int = 10) -> list[tuple[str, str, float]]:
    """The allocator waits in aten::cat from 22 until it frees, and a collective runs from `began` to 3000."""
    nccl = "ncclDevKernel_SendRecv(x)"
    events = (
        step(0, 3200),
        launch(5, 1, 1),
        kernel(nccl, began, 3000 - began, 1, stream=8),
        call("cudaEventQuery", 20, 2),
    )
    freed = op("aten::cat", 18, until + 30 - 18), call("cudaEventQuery", until, 1), launch(until + 10, 1, 2)
    return path(*events, *freed, kernel("b", until + 15, 300, 2))


def test_a_wait_that_no_row_shows_is_seen_by_the_collective_that_ends_just_before_the_host_goes_on() -> None:
    assert silent(3030)[2:] == [
        ("collective", "ncclDevKernel_SendRecv(x)", 2990),
        ("sync_return", "aten::cat", 30),
        ("host_op", "aten::cat", 10),
        ("launch_latency", "", 5),
        ("kernel", "b", 300),
    ]
    assert "collective" not in [kind for kind, _, _ in silent(3200)]
    assert "collective" not in [kind for kind, _, _ in silent(3030, began=400)]


def test_a_step_that_the_host_ends_last_ends_on_the_host() -> None:
    events = step(0, 60), launch(2, 1, 1), kernel("a", 7, 4, 1), annotation(LOADER, 20, 30)
    assert path(*events) == [("python", "", 20), ("data_loader", "", 30), ("python", "", 10)]


def test_work_that_runs_on_from_one_step_into_the_next_is_cut_where_that_begins() -> None:
    """The windows end with z, a and b; b already runs while a ends the step before."""
    first = step(0, 20, 0), launch(2, 1, 1), kernel("z", 7, 5, 1)
    second = step(20, 20, 1), launch(22, 1, 2), kernel("a", 27, 28, 2)
    third = step(40, 20, 2), launch(42, 1, 3), kernel("b", 47, 23, 3, stream=8)
    assert path(*first, *second, *third) == [
        ("python", "", 2),
        ("launch_latency", "", 5),
        ("kernel", "z", 5),
        ("python", "", 8),
        ("python", "", 2),
        ("launch_latency", "", 5),
        ("kernel", "a", 28),
        ("kernel", "b", 15),
    ]


def test_rows_are_what_the_path_leads_through_added_up() -> None:
    one = launch(2, 1, 1), kernel("a", 7, 40, 1), launch(5, 1, 2), kernel("a", 49, 20, 2)
    path = table(build(step(0, 20), *one), "critical")
    rows = {(row["kind"], row["name"]): (row["num"], row["dur_ns"]) for row in path}
    assert rows["kernel", "a"] == (2, 60_000)
    assert rows["queue", ""] == (1, 2_000)


def slow_walk(trace: Trace) -> list[tuple[int, int, str]]:
    """The path of each counted step, one edge after the other: (start, end, name) of what runs on the device."""
    replay, windows = replay_of(trace), steps(trace).window
    edges, on_path = replay.graph.edges, []
    for number in np.flatnonzero(steps(trace).counted).tolist():
        start, node = int(windows[number, 0]), int(replay.last_nodes[number])
        while replay.time_ns[node] > start:
            edge = int(replay.choice[node])
            if edges.kind[edge] == EdgeKind.DURATION:
                work = device_work(trace).rows[edges.a[edge]]
                begin = max(int(replay.time_ns[edges.source[edge]]), start)
                on_path.append((begin, int(replay.time_ns[node]), trace.events.text(int(work))))
            node = int(edges.source[edge])
    return on_path


@pytest.mark.parametrize("seed", range(30))
def test_all_legs_at_once_are_the_path_that_a_slow_walk_finds(seed: int) -> None:
    (trace,) = run_of(a_job(seed)).traces
    path = critical_path(trace)
    device = np.isin(path.kind, (PathKind.KERNEL, PathKind.COLLECTIVE, PathKind.COPY))
    parts = zip(*path.parts[device].T.tolist(), (path.texts[name] for name in path.name[device]), strict=True)
    assert sorted(parts) == sorted(part for part in slow_walk(trace) if part[1] > part[0])


@pytest.mark.parametrize("seed", range(30))
def test_the_path_tiles_the_steps(seed: int) -> None:
    for trace in run_of(a_job(seed, num_ranks=1 + seed % 2)).traces:
        assert_tiled(trace)


@pytest.mark.parametrize("name", ["ddp-a100/rank0", "owlv2/h100", "nanogpt-h100-8r/rank0", "gloo-cpu/rank34"])
def test_the_path_tiles_the_steps_of_real_traces(name: str) -> None:
    file = TRACES / f"{name}.json.gz"
    if not file.exists():
        pytest.skip(f"no trace {name} beside this checkout")
    assert_tiled(read_trace(file))


def assert_tiled(trace: Trace) -> None:
    path, counted = critical_path(trace), steps(trace).counted
    starts = steps(trace).window[:, 0]
    total = Counter[int]()
    for start, end in path.parts.tolist():
        total[int(np.searchsorted(starts, start, "right")) - 1] += end - start
    assert [total[number] for number in np.flatnonzero(counted).tolist()] == replay_of(trace).step_ns[counted].tolist()
    assert (path.parts[1:, 0] >= path.parts[:-1, 1]).all()


@pytest.mark.parametrize("origin", [-2, -6, -1_000])
def test_times_before_zero_are_times_like_any_other(origin: int) -> None:
    events = step(1, 3, 0), kernel("a", 5, 1, 1), launch(3, 1, 1), kernel("before", 0, 1), kernel("between", 2, 1)
    moved = read_text(text(*events, origin=origin))
    assert table(moved, "critical") == table(build(*events), "critical")
