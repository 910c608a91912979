"""Every nanosecond of a window falls into exactly one cell, rule by rule of docs/method.md."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from builder import (
    AUTOGRAD,
    Event,
    annotation,
    build,
    call,
    comms,
    kernel,
    launch,
    memcpy,
    memset,
    op,
    read_text,
    step,
    table,
    text,
    world,
)
from examples import up_to
from hypothesis import given
from hypothesis import strategies as st

from traceq.analysis.registry import analyze, names
from traceq.claims.claim import BY_JOB_REPLAY, Claim, Subject
from traceq.model import Run, Trace

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def cells(*events: Event) -> dict[str, int]:
    """Us of each category of the only window; the phase stands before a colon where it is not `forward`."""
    result: dict[str, int] = {}
    for cell in table(build(step(0, 100), *events), "partition"):
        phase = "" if cell["phase"] == "forward" else cell["phase"] + ":"
        result[phase + cell["category"]] = cell["dur_ns"] // 1000
    return result


def test_compute_hides_communication_hides_copies() -> None:
    assert cells(
        *(launch(0, 1, corr) for corr in (1, 2, 3)),
        kernel("gemm", 10, 30, 1),
        kernel(ALL_REDUCE, 20, 40, 2, stream=8),
        memcpy("HtoD (Pinned -> Device)", 50, 30, 3, stream=9),
    ) == {"host_bound": 1, "launch_latency": 9, "compute": 30, "exposed_comm": 20, "exposed_memcpy": 20, "tail": 20}


def test_idle_time_before_work_launched_before_the_first_recorded_call_is_launch_latency() -> None:
    """The host waits from 20 on for what was launched before; up to then it may still have launched unrecorded."""
    opening = [kernel("early", begin, 8, corr) for begin, corr in ((15, 91), (25, 92), (35, 93))]
    waits = call("cudaDeviceSynchronize", 20, 25)
    assert cells(*opening, waits, launch(50, 2, 1), kernel("gemm", 60, 35, 1)) == {
        "host_bound": 15 + 7,
        "before_window:compute": 24,
        "before_window:launch_latency": 2 + 2,
        "sync_wait": 2,
        "launch_latency": 8,
        "compute": 35,
        "tail": 5,
    }


SPINS = "at::cuda::(anonymous namespace)::spin_kernel(long)"


@pytest.mark.parametrize(
    ("name", "category"),
    [
        (SPINS, "spin_wait"),
        ("at::cuda::(anonymous namespace)::busy_wait_for_flag_kernel(int*)", "spin_wait"),
        ("_ZN2at4cuda12_GLOBAL__N_111spin_kernelEl", "spin_wait"),
        ("void ising::update_spin_kernel<float>(float*)", "compute"),
        ("void at::native::vectorized_elementwise_kernel<4, sleep_kernel>(int)", "compute"),
        ("c10d::symmetric_memory::wait_signal_kernel(unsigned int**, int)", "exposed_comm"),
        ("c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**, int)", "exposed_comm"),
    ],
)
def test_a_kernel_that_only_waits_computes_nothing(name: str, category: str) -> None:
    assert cells(launch(0, 1, 1), kernel(name, 1, 99, 1)) == {"host_bound": 1, category: 99}


def test_whatever_runs_beside_a_spin_wait_counts() -> None:
    work = kernel(SPINS, 1, 60, 1), kernel("gemm", 20, 30, 2, stream=8), memcpy("HtoD", 55, 45, 3, stream=9)
    assert cells(*(launch(0, 1, corr) for corr in (1, 2, 3)), *work) == {
        "host_bound": 1,
        "spin_wait": 19 + 5,
        "compute": 30,
        "exposed_memcpy": 45,
    }


def test_a_collective_on_the_compute_stream_is_still_communication() -> None:
    assert cells(launch(0, 1, 1), kernel(ALL_REDUCE, 1, 99, 1)) == {"host_bound": 1, "exposed_comm": 99}


def test_memsets_are_copies() -> None:
    assert cells(launch(0, 1, 1), memset(1, 99, 1)) == {"host_bound": 1, "exposed_memcpy": 99}


def test_before_its_launch_returns_work_waits_for_the_host_and_then_for_the_queue() -> None:
    assert cells(launch(20, 10, 1), kernel("gemm", 45, 55, 1)) == {
        "host_bound": 30,
        "launch_latency": 15,
        "compute": 55,
    }


def test_after_the_last_device_op_is_tail() -> None:
    assert cells(launch(0, 1, 1), kernel("gemm", 1, 9, 1)) == {"host_bound": 1, "compute": 9, "tail": 90}


def test_inside_a_call_that_ends_before_the_next_op_starts_the_host_waits() -> None:
    assert cells(
        launch(0, 1, 1),
        kernel("a", 1, 19, 1),
        call("cudaEventSynchronize", 10, 30),
        launch(50, 5, 2),
        kernel("b", 60, 40, 2),
    ) == {"host_bound": 1 + 15, "compute": 19 + 40, "sync_wait": 20, "launch_latency": 5}


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaFree", "cudaHostAlloc", "hipMalloc"])
def test_inside_an_allocation_the_device_waits_for_the_allocator(name: str) -> None:
    result = cells(launch(0, 1, 1), kernel("a", 1, 19, 1), call(name, 20, 20), launch(50, 5, 2), kernel("b", 55, 45, 2))
    assert result == {"host_bound": 1 + 15, "compute": 19 + 45, "alloc_wait": 20}


def test_what_was_launched_before_a_call_does_not_wait_for_it() -> None:
    """A could not start sooner without the call, only END, which is launched after it, could."""
    assert cells(launch(0, 1, 1), call("cudaDeviceSynchronize", 2, 48), kernel("a", 10, 30, 1), *END) == {
        "host_bound": 1 + 40,
        "launch_latency": 1 + 8,
        "sync_wait": 10,
        "compute": 30 + 10,
    }


def test_an_allocation_awaits_nothing_a_kernel_that_starts_meanwhile_was_queued() -> None:
    assert cells(launch(0, 1, 1), call("cudaMalloc", 2, 48), kernel("a", 10, 30, 1), *END) == {
        "host_bound": 1 + 40,
        "launch_latency": 9,
        "alloc_wait": 10,
        "compute": 30 + 10,
    }


END = (launch(80, 10, 99), kernel("end", 90, 10, 99))


def test_a_wait_of_a_bystanding_thread_keeps_nobody_waiting() -> None:
    bystander = call("cudaEventSynchronize", 10, 30, tid=77)
    assert cells(bystander, launch(50, 10, 1), kernel("a", 60, 40, 1)) == {"host_bound": 60, "compute": 40}
    assert cells(bystander, launch(50, 10, 1, tid=77), kernel("a", 60, 40, 1)) == {
        "host_bound": 30,
        "sync_wait": 30,
        "compute": 40,
    }


def test_a_wait_of_the_main_thread_counts_though_another_thread_launches_next() -> None:
    waits = call("cudaEventSynchronize", 10, 30)
    assert cells(waits, launch(50, 10, 1, tid=AUTOGRAD), kernel("a", 60, 40, 1)) == {
        "host_bound": 30,
        "sync_wait": 30,
        "compute": 40,
    }


PHASES = (annotation("load", 0, 40), annotation("forward", 40, 30), annotation("backward", 70, 30))


def test_idle_time_belongs_to_what_the_main_thread_does_then_and_queueing_to_the_launch() -> None:
    """A slow data loader shows as itself, although it is `forward` that launches next."""
    assert cells(*PHASES, launch(45, 5, 1), kernel("a", 75, 20, 1)) == {
        "load:host_bound": 40,
        "host_bound": 10,
        "launch_latency": 25,
        "compute": 20,
        "backward:tail": 5,
    }


def test_of_two_kernels_that_overlap_the_earlier_decides_the_phase() -> None:
    early, late = kernel("early", 50, 30, 1), kernel("late", 60, 40, 2, stream=8)
    launches = launch(0, 1, 1), launch(41, 1, 2)
    assert cells(*PHASES, *launches, early, late) == {
        "load:host_bound": 1,
        "load:launch_latency": 49,
        "load:compute": 30,
        "compute": 20,
    }


def test_work_that_a_later_window_runs_is_charged_there() -> None:
    first, second = (step(0, 10), launch(2, 1, 1)), (step(10, 10, 1), launch(12, 1, 2))
    trace = build(*first, *second, kernel("a", 5, 25, 1), kernel("b", 30, 20, 2))
    compute = {row["step"]: row["dur_ns"] for row in table(trace, "partition") if row["category"] == "compute"}
    assert compute == {0: 25_000, 1: 20_000}


def test_a_gloo_rank_on_a_cpu_computes_before_it_communicates_before_it_loads() -> None:
    assert cells(
        op("aten::mm", 10, 20),
        annotation("gloo:all_reduce", 20, 30, tid=9),
        annotation("enumerate(DataLoader)#_It.__next__", 45, 25),
        op("aten::mm", 60, 30, tid=9),
    ) == {"cpu_compute": 20, "exposed_comm": 15, "dataload:exposed_comm": 5, "dataload:dataload_wait": 20, "python": 40}


def test_a_node_of_autograd_computes_in_its_ops_and_its_hooks_may_wait_for_a_collective() -> None:
    """FSDP gathers the weights of a layer in a hook of its node, from 25, and multiplies from 50."""
    node = op("autograd::engine::evaluate_function: MmBackward0", 10, 60), op("MmBackward0", 12, 56)
    ops = op("c10d::_allgather_base_", 25, 2), op("aten::mm", 50, 15)
    assert cells(*node, *ops)["backward:cpu_compute"] == 60
    waiting = cells(*node, *ops, annotation("gloo:all_gather", 26, 30, tid=9))
    assert (waiting["backward:cpu_compute"], waiting["backward:exposed_comm"]) == (36, 24)


def test_issuing_a_collective_is_not_computing() -> None:
    assert cells(op("c10d::allreduce_", 10, 20), op("record_param_comms", 12, 5)) == {"python": 100}
    assert cells(op("gloo:all_reduce", 10, 20)) == {"exposed_comm": 20, "python": 80}


def test_an_op_that_waits_for_a_functional_collective_computes_only_in_ops_inside() -> None:
    """Waits of tensor parallelism were told as 65.5 % of computing, as ops of such a tensor are around them."""
    wait = "_c10d_functional::wait_tensor"
    nested = op("aten::mm", 10, 60), op("PythonSubclass", 12, 50), op(wait, 15, 40), op("PythonSubclass", 17, 36)
    inner = op(wait, 20, 30), op("aten::copy_", 44, 4)
    late = annotation("gloo:all_reduce", 30, 14, tid=9)
    assert cells(*nested, *inner, late) == {"exposed_comm": 30, "cpu_compute": 30, "python": 40}
    device = call("cudaLaunchKernel", 80, 2, 1), annotation("nccl:all_reduce", 30, 14)
    assert "exposed_comm" not in cells(*nested, *inner, *device)


def test_a_call_of_another_process_waits_for_it_but_for_what_the_caller_computes_meanwhile() -> None:
    """12.7 of 23.2 s were `ops on the CPU`, of which only less or faster work was to save much."""
    remote = op("rpc_async#_get_value_on_remote(worker0 -> worker13)", 10, 50), op("aten::mm", 20, 10)
    assert cells(*remote) == {"cpu_compute": 10, "exposed_comm": 40, "python": 50}


HOST = (
    launch,
    lambda start, dur, corr, **more: call("cudaMemcpyAsync", start, dur, corr, **more),
    lambda start, dur, corr, **more: call("cudaMalloc", start, dur, **more),
    lambda start, dur, corr, **more: call("cudaStreamSynchronize", start, dur, **more),
    lambda start, dur, corr, **more: call("cudaDeviceSynchronize", start, dur, **more),
    lambda start, dur, corr, **more: op("aten::copy_", start, dur, **more),
    lambda start, dur, corr, **more: op("autograd::engine::evaluate_function: MmBackward0", start, dur, **more),
    lambda start, dur, corr, **more: annotation("forward", start, dur, **more),
    lambda start, dur, corr, **more: annotation("backward", start, dur, **more),
    lambda start, dur, corr, **more: annotation("gloo:all_reduce", start, dur, **more),
)
DEVICE = (
    lambda start, dur, corr, stream: kernel("gemm", start, dur, corr, stream),
    lambda start, dur, corr, stream: kernel(ALL_REDUCE, start, dur, corr, stream),
    lambda start, dur, corr, stream: memcpy("DtoH (Device -> Pageable)", start, dur, corr, stream),
    lambda start, dur, corr, stream: memset(start, dur, corr, stream),
)


@st.composite
def traces(draw: st.DrawFn) -> list[Event]:
    """One to four steps; anything on two host threads and two streams, no two rows starting together."""
    edges = sorted(draw(st.lists(st.integers(1, 60), min_size=2, max_size=5, unique=True)))
    events = [step(edge, after - edge, number) for number, (edge, after) in enumerate(pairwise(edges))]
    starts = st.integers(0, 80).filter(lambda start: start not in edges)
    for start in draw(st.lists(starts, max_size=16, unique=True)):
        dur, corr = draw(st.integers(0, 40)), draw(st.integers(0, 8))
        if draw(st.booleans()):
            events.append(draw(st.sampled_from(HOST))(start, dur, corr, tid=draw(st.sampled_from([1, AUTOGRAD]))))
        else:
            events.append(draw(st.sampled_from(DEVICE))(start, dur, corr, draw(st.sampled_from([7, 8]))))
    return events


@pytest.mark.slow
@up_to(300)
@given(traces())
def test_the_cells_add_up_to_every_window_exactly(events: list[Event]) -> None:
    trace = build(*events)
    windows = {result["step"]: result["window_ns"] for result in table(trace, "steps")}
    sums = dict.fromkeys(windows, 0)
    for cell in table(trace, "partition"):
        assert cell["dur_ns"] > 0
        sums[cell["step"]] += cell["dur_ns"]
    assert sums == windows


def answers(trace: Trace) -> dict[str, list[Any]]:
    """All rows of all analyses, in an order of their own."""
    run = Run("", (trace,))
    tables = [table for name in names() for table in analyze(run, name).tables]
    return {table.key: sorted(map(repr, table.rows)) for table in tables}


@pytest.mark.slow
@up_to(100)
@given(traces(), st.integers(-(10**15), 10**15))
def test_shifting_all_times_changes_nothing(events: list[Event], origin: int) -> None:
    assert answers(read_text(text(*events, origin=origin))) == answers(build(*events))


def test_a_step_of_which_nothing_is_left_on_the_device_has_answers() -> None:
    """Its only kernel takes no time, after all steps: the replayed step takes none, of which syncs are any share."""
    assert answers(build(step(1, 1), step(2, 20, 1), kernel("gemm", 23, 0, 0)))


def test_a_trace_whose_work_takes_no_time_has_answers() -> None:
    assert answers(build(step(1, 1), kernel("gemm", 0, 0, 1), launch(3, 0, 1)))


@pytest.mark.slow
@up_to(100)
@given(traces(), st.randoms(use_true_random=False))
def test_the_order_of_the_events_in_the_file_changes_nothing(events: list[Event], random: Any) -> None:
    shuffled = random.sample(events, len(events))
    assert answers(build(*shuffled)) == answers(build(*events))


def test_exposed_communication_of_several_ranks_is_waiting_and_transfer() -> None:
    """Rank 1 arrives 200 us late in each of three steps of 1 ms; the transfer takes 100 us."""

    def rank(number: int, late: float) -> Trace:
        events: list[Event] = []
        for k in range(3):
            start = 1000 * k
            events += [step(start, 1000, k), launch(start + 10, 1, 10 * k + 1)]
            events.append(kernel("gemm", start + 100, 400, 10 * k + 1))
            for index, (from_us, to_us) in enumerate(((20 + start, 30 + start), (start + 600 + late, start + 900))):
                corr = 10 * k + 2 + index
                events += [
                    comms("allreduce", from_us - 5, 2, (100 + index, 100 + index)),
                    launch(from_us - 4, 1, corr),
                    kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", from_us, to_us - from_us, corr, stream=20),
                ]
        return build(*events, **world(number, 2))

    run = Run("job", (rank(0, 0), rank(1, 200)))
    sums: dict[tuple[int, str], int] = {}
    for row in table(run, "partition"):
        sums[row["rank"], row["category"]] = sums.get((row["rank"], row["category"]), 0) + row["dur_ns"]
    assert sums[0, "exposed_wait"] == 3 * 200_000
    assert (0, "exposed_comm") not in sums
    assert (1, "exposed_wait") not in sums
    assert sums[1, "exposed_transfer"] == 3 * 110_000
    wait, transfer = exposed(run)
    assert (wait.code, wait.ns, wait.gain) == ("exposed_wait", 100_000, None)
    assert (transfer.code, transfer.ns) == ("exposed_transfer", 110_000)
    assert (wait.measures["share_pct"], transfer.measures["share_pct"]) == pytest.approx((10.34, 11.38), abs=0.01)
    (alone,) = exposed(Run("one", (rank(0, 0),)))
    assert (alone.code, alone.remedy, alone.gain) == ("exposed_comm", "all_ranks", None)


@pytest.mark.parametrize(("devices", "remedy"), [((0,), "all_ranks"), ((0, 1), "")], ids=["one device", "two"])
def test_a_process_that_communicates_from_one_device_has_peers_though_no_metadata_tells(
    devices: tuple[int, ...], remedy: str
) -> None:
    """Four of five all-reduces took 50 ms, and the first 0.9 s, of which overlap was to gain up to 377."""
    calls = [launch(10 + number, 1, number + 1) for number in range(len(devices))]
    kernels = [kernel(ALL_REDUCE, 20, 60, n + 1, device=device) for n, device in enumerate(devices)]
    (claim,) = exposed(Run("", (build(step(0, 100), *calls, *kernels),)))
    assert (claim.code, claim.remedy, claim.gain is None) == ("exposed_comm", remedy, bool(remedy))


@pytest.mark.parametrize(
    ("workers", "main"),
    [((13, 13, 13), "rpc_async#f(worker0 -> worker13)"), ((1, 2, 3), "")],
    ids=["mostly one", "several"],
)
def test_a_wait_for_another_process_is_told_as_one_and_no_exchange_to_be_overlapped(
    workers: tuple[int, ...], main: str
) -> None:
    """Two jobs of pipeline stages behind RPC waited for 56 and 79 % of their time, and were to exchange less."""
    calls = [op(f"rpc_async#f(worker0 -> worker{to})", 10 + 20 * n, 20) for n, to in enumerate(workers)]
    (claim,) = exposed(Run("", (build(step(0, 100), op("aten::mm", 75, 10), *calls),)))
    assert (claim.remedy, claim.subject, claim.ns) == ("remote_call", Subject(op=main, kind="RPC"), 60_000)
    (claim,) = exposed(Run("", (build(step(0, 100), op("aten::mm", 90, 5), op("gloo:all_reduce", 10, 60)),)))
    assert (claim.remedy, claim.subject) == ("", Subject())


def exposed(run: Run) -> list[Claim]:
    return [claim for claim in analyze(run, "partition").findings if "exposed" in claim.code]


@pytest.mark.parametrize(("has_sizes", "num_late", "most_ns"), [(True, 1, 40_000), (False, 1, None), (True, 4, None)])
def test_calls_of_one_size_tell_that_the_long_ones_wait(has_sizes: bool, num_late: int, most_ns: int | None) -> None:
    """One step, which reduces as much four times, in 10 us, or in 90 us where another rank is late."""
    events = [step(0, 100), op("aten::mm", 0, 1), launch(1, 1, 1), kernel("gemm", 5, 495, 1)]
    start = 500
    for index in range(4):
        ns = 90 if index < num_late else 10
        events += [comms("allreduce", 10 * index + 10, 8, (100, 100))] if has_sizes else []
        events += [launch(10 * index + 12, 2, 2 + index)]
        events += [kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", start, ns, 2 + index)]
        start += ns
    (lost,) = exposed(Run("", (build(*events, **world(0, 2)),)))
    assert lost.measures.get("most_transfer_ns") == most_ns


@pytest.mark.parametrize(("start", "lacks_work"), [(3_010, False), (4_000, True)])
def test_communication_beside_work_that_the_trace_lacks_may_be_hidden(start: int, lacks_work: bool) -> None:
    """A launched kernel waits from 3,000 to 4,000 for something in no row, which may run beside collectives as well."""
    rows = [step(0, 6_000)]
    for n in range(10):
        rows += [launch(200 * n, 1, n + 1), kernel("gemm", 200 * n + 5, 190, n + 1)]
    rows += [launch(10, 1, 11), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 2_000, 1_000, 11, stream=20)]
    whole = build(*rows, launch(2_500, 1, 12), kernel("gemm", start, 5_990 - start, 12))
    (lost,) = exposed(Run("", (whole,)))
    assert lost.measures.get("unrecorded_ns", 0) == pytest.approx(1_000_000 * lacks_work, rel=0.01)


def test_a_share_is_of_the_time_without_a_cold_start() -> None:
    """After the first use of the device an all-reduce of 40 ms, and a kernel of 9."""
    begin = 200_000
    rows = [op("aten::zeros", 1, begin - 1), call("cudaMalloc", begin - 10, 9)]
    rows += [launch(begin, 1_000, 1), kernel(ALL_REDUCE, begin + 1_000, 40_000, 1)]
    rows += [launch(begin + 10_000, 5, 2), kernel("gemm", begin + 41_000, 9_000, 2)]
    (lost,) = exposed(Run("", (build(*rows),)))
    assert (lost.ns, lost.measures["share_pct"]) == (40_000_000, pytest.approx(80, abs=0.1))


def test_on_a_cpu_transfers_of_gloo_could_overlap_with_compute() -> None:
    """Two ranks, whose transfers take 90 us of each step of 300, in threads of gloo."""

    def rank(number: int) -> Trace:
        rows: list[Event] = []
        for index in range(3):
            start = 300 * index
            rows += [step(start, 300, index), op("aten::mm", start + 1, 150)]
            for late in (160, 230):
                shapes = {"Input Dims": [[64]], "Input type": ["float"]}
                rows.append(op("c10d::allreduce_", start + late - 3, 2, **shapes))
                rows.append(annotation("gloo:all_reduce", start + late, 45, tid=9, **shapes))
        return build(*rows, **world(number, 2, backend="gloo"))

    (lost,) = exposed(Run("job", (rank(0), rank(1))))
    assert (lost.code, lost.ns, lost.gain, lost.gain_by) == ("exposed_transfer", 90_000, (0, 90_000), BY_JOB_REPLAY)


def test_transfers_that_the_step_does_not_wait_for_gain_nothing() -> None:
    """The host takes all of each step; by replay of both ranks it is as long where transfers take no time."""

    def rank(number: int) -> Trace:
        rows: list[Event] = []
        for index in range(3):
            start, corr = 1000 * index, 10 * index
            rows += [step(start, 1000, index), op("aten::mm", start + 1, 990)]
            rows += [launch(start + 10, 2, corr + 1), kernel("gemm", start + 20, 300, corr + 1)]
            rows += [comms("allreduce", start + 39, 4, (100, 100)), launch(start + 40, 2, corr + 2)]
            rows.append(kernel(ALL_REDUCE, start + 330, 200, corr + 2, stream=20))
            rows += [launch(start + 900, 2, corr + 3), kernel("gemm", start + 910, 60, corr + 3)]
        return build(*rows, **world(number, 2))

    (lost,) = exposed(Run("job", (rank(0), rank(1))))
    assert (lost.code, lost.ns, lost.gain) == ("exposed_transfer", 200_000, (0, 0))


def test_a_barrier_on_a_cpu_is_a_wait_and_no_transfer() -> None:
    """Two ranks of gloo leave a barrier at 90 us of each step, in which one is from 50, the other from 80 us."""

    def rank(number: int, since: int) -> Trace:
        rows: list[Event] = []
        for start in (0, 100, 200):
            shapes = {"Input Dims": [[64]], "Input type": ["float"]}
            rows += [step(start, 100, start // 100), op("c10d::allreduce_", start + 5, 1, **shapes)]
            rows.append(annotation("gloo:all_reduce", start + 10, 10, tid=9, **shapes))
            rows += [op("c10d::barrier", start + since, 1)]
            rows.append(annotation("gloo:barrier", start + since, 90 - since, tid=9))
        return build(*rows, **world(number, 2, backend="gloo"))

    cells = {
        (row["rank"], row["category"]): row["dur_ns"]
        for row in table(Run("job", (rank(0, 50), rank(1, 80))), "partition")
        if row["category"].startswith("exposed")
    }
    assert (cells[0, "exposed_wait"], cells[0, "exposed_transfer"]) == (40_000, 10_000)
    assert (cells[1, "exposed_wait"], cells[1, "exposed_transfer"]) == (10_000, 10_000)


def test_exposed_copies_within_the_device_are_told_from_those_that_can_overlap() -> None:
    """Of 40 us exposed, 30 us copy within the device: on the stream that computes nothing can run beside them."""

    def claim(direction: str, stream: int = 7) -> Claim:
        copy = op("aten::copy_", 20, 8), call("cudaMemcpyAsync", 22, 4, 2), memcpy(direction, 50, 30, 2, stream=stream)
        work = launch(1, 5, 1), kernel("gemm", 10, 40, 1), launch(30, 5, 3), memset(80, 10, 3)
        return next(
            each for each in exposed(Run("", (build(step(0, 100), *work, *copy),))) if each.code == "exposed_memcpy"
        )

    within = claim("DtoD (Device -> Device)")
    assert (within.remedy, within.subject.op, within.measures["device_copies_ns"]) == (
        "device_copies",
        "aten::copy_",
        30_000,
    )
    for other in claim("DtoD (Device -> Device)", stream=9), claim("HtoD (Pinned -> Device)"):
        assert (other.ns, other.remedy, other.subject.op) == (40_000, "", "")


@pytest.mark.parametrize("first_us", [490, 90])
def test_waits_in_a_first_collective_are_no_finding_but_said(first_us: int) -> None:
    def rank(number: int, first_us: int) -> Trace:
        meets = (500 - first_us, first_us + 10), (700, 10)
        rows = [step(0, 1000), op("aten::mm", 0, 990)]
        for corr, (start, us) in enumerate(meets, start=1):
            rows += [comms("allreduce", start - 3, 2, (8, 8)), launch(start - 2, 1, corr)]
            rows += [kernel(ALL_REDUCE, start, us, corr, stream=20)]
        return build(*rows, launch(1, 1, 9), kernel("a", 990, 10, 9), **world(number, 2))

    report = analyze(Run("job", (rank(0, first_us), rank(1, 0))), "partition")
    assert [finding.code for finding in report.findings if "exposed" in finding.code] == []
    notes = [caveat for caveat in report.caveats if caveat.code == "first_collective"]
    assert ["245 us" in note.text for note in notes] == [True] * (first_us == 490)
