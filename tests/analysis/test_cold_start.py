"""What is once in the steps, as a finding of its own, and what is said of the time without it. Times in us."""

from __future__ import annotations

import pytest
from builder import Event, build, call, frame, kernel, launch, memcpy, memory, op, step, table

from traceq.analysis.registry import analyze
from traceq.claims.claim import Claim
from traceq.facts.events.kernel_loads import kernel_loading_calls
from traceq.facts.events.starting_calls import library_loading_calls
from traceq.facts.roofline.peaks import replaced_peaks
from traceq.model import Run, Trace

COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::Ten"
CREATION, END = (f"torch/utils/data/dataloader.py(9): {name}" for name in ("_get_iterator", "_shutdown_workers"))


def cold_starts(trace: Trace) -> list[Claim]:
    return [each for each in analyze(Run("", (trace,)), "partition").findings if each.code == "cold_start"]


def cold(first_use_ms: float, load_ms: float) -> Trace:
    """A step of which the first op starts the device, and the last of 60 launches loads its kernel, if that is long."""
    start = 1_000 * first_use_ms
    rows = [op("aten::zeros", 1, start), call("cudaMalloc", start - 1, 1)]
    for n in range(60):
        begin, dur = start + 10 + 10 * n, 3 if n < 59 else 1_000 * load_ms
        rows += [op("aten::add", begin, dur + 2), launch(begin + 1, dur, n + 1)]
        rows += [kernel("add" if n < 59 else "gemm", begin + dur + 5, 2, n + 1)]
    return build(step(0, start + 1_000 * load_ms + 700), *rows)


def test_a_profiler_that_takes_much_of_short_steps_is_no_cold_start() -> None:
    """The begin of the steps of a recording was told as a cold start."""
    rows = [each for n in range(4) for each in (step(9000 * n, 9000, n), op("aten::mm", 9000 * n + 3000, 5000))]
    profilers = [frame("torch/profiler/profiler.py(821): step", 9000 * n + 1, 2000) for n in range(4)]
    (finding,) = cold_starts(build(*rows, *profilers, frame("main.py(7): train", 0, 36_000)))
    assert (finding.ns, finding.measures.get("what")) == (8_000_000, None)


def test_starting_the_device_and_loading_kernels_is_a_cold_start() -> None:
    trace = cold(400, 80)
    events = trace.events
    assert [events.strings[events.name[row]] for row in kernel_loading_calls(trace)] == ["cudaLaunchKernel"]
    (finding,) = cold_starts(trace)
    assert finding.ns == pytest.approx(480_000_000, rel=1e-4)
    assert finding.measures["device_start_of"] == "aten::zeros"
    assert finding.measures["device_start_ns"] == pytest.approx(400_000_000, rel=1e-4)
    assert finding.measures["kernel_loading_ns"] == pytest.approx(80_000_000, rel=1e-3)
    assert cold_starts(cold(90, 0.9)) == []
    assert [each.ns for each in cold_starts(cold(90, 80))] == [pytest.approx(80_000_000, rel=1e-4)]


def test_where_most_launches_load_later_ones_tell_how_long_a_launch_takes() -> None:
    rows, start = [], 0.0
    for number, (name, us) in enumerate([("gemm", 9000), ("clamp", 17000), ("gemm", 10), ("div", 8000)], 1):
        rows += [op(f"aten::{name}", start, us + 10), launch(start + 1, us, number)]
        rows += [kernel(name, start + us + 5, 2, number)]
        start += us + 20
    assert len(kernel_loading_calls(build(*rows))) == 3


@pytest.mark.parametrize(
    "calls",
    [
        (call("cudaMemcpyAsync", 5, 20, 90), call("cudaStreamSynchronize", 30, 249_960)),
        (call("cudaMemcpyAsync", 5, 249_980, 90),),
        (call("cudaStreamIsCapturing", 3, 1), call("cudaMemcpyAsync", 5, 249_980, 90)),
    ],
    ids=["synchronize", "copy", "copy after a question"],
)
def test_a_trace_that_begins_while_its_device_is_behind_has_no_cold_start(calls: tuple[Event, ...]) -> None:
    """Its first op waits 250 ms for work that was launched before, and copies a number to the host."""
    rows = [op("aten::item", 1, 250_000), *calls, memcpy("DtoH (Device -> Pageable)", 249_900, 3, 90)]
    for n in range(60):
        begin = 250_020 + 10 * n
        rows += [op("aten::mul", begin, 5), launch(begin + 1, 3, n + 2), kernel("mul", begin + 6, 2, n + 2)]
    assert cold_starts(build(*rows)) == []


def test_a_cold_start_does_not_hide_that_the_rest_waits_for_the_host() -> None:
    """Four kernels of 2,000 us after a start of 200 ms, each of them after 30 ms of preparation."""
    rows = [op("aten::zeros", 1, 200_000), call("cudaMalloc", 199_000, 1)]
    for n in range(4):
        begin = 200_010 + 32_000 * n
        rows += [op("aten::prepare", begin, 30_000), launch(begin + 29_000, 5, n + 1)]
        rows += [kernel("gemm", begin + 30_000, 2_000, n + 1)]
    (start, rest) = analyze(Run("", (build(step(0, 330_000), *rows),)), "partition").findings
    assert (start.code, rest.code) == ("cold_start", "host_bound")
    assert start.measures["busy_after_pct"] == pytest.approx(6.15, abs=0.05)
    assert start.measures["after_ns"] == pytest.approx(130_000_000, rel=0.01)
    assert rest.ns == pytest.approx(0.893 * start.measures["after_ns"], rel=0.05)


def test_a_kernel_that_is_loaded_within_the_first_use_is_part_of_it() -> None:
    """Its time is not told twice: a cold start is no longer than the trace."""
    rows = [op("aten::add_", 1, 150_000), launch(50_000, 100_000, 1), kernel("add", 150_005, 2, 1)]
    for n in range(60):
        begin = 150_020 + 10 * n
        rows += [op("aten::mul", begin, 5), launch(begin + 1, 3, n + 2), kernel("mul", begin + 6, 2, n + 2)]
    (finding,) = cold_starts(build(step(0, 151_000), *rows))
    assert finding.ns == pytest.approx(150_000_000, rel=1e-4)
    assert "kernel_loading_ns" not in finding.measures


@pytest.mark.parametrize(("allocated", "code"), [(512, "device_start_ns"), (1 << 20, "kernel_loading_ns")])
def test_a_device_that_has_memory_already_is_not_used_for_the_first_time(allocated: int, code: str) -> None:
    rows = [op("aten::add_", 1, 150_000), memory(2, 512, allocated, 1 << 21)]
    rows += [launch(50_000, 100_000, 1), kernel("add", 150_005, 2, 1)]
    for n in range(60):
        begin = 150_020 + 10 * n
        rows += [op("aten::mul", begin, 5), launch(begin + 1, 3, n + 2), kernel("mul", begin + 6, 2, n + 2)]
    (finding,) = cold_starts(build(step(0, 151_000), *rows))
    assert code in finding.measures


def test_the_start_of_a_loaders_workers_is_once_but_not_that_of_a_later_epoch() -> None:
    """It took 5.68 of 12.4 s, of which was said that little or nothing was to gain there."""
    loads = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    rows = []
    for epoch, begin in enumerate((0, 3_000_000)):
        rows += [op("aten::random_", begin + 5, 5), op(loads, begin + 400_000, 900_000)]
        rows += [op("aten::mm", begin + 1_300_010, 90), launch(begin + 1_300_020, 5, epoch + 1)]
        rows.append(kernel("gemm", begin + 1_300_030, 1_000_000, epoch + 1))
    (finding,) = cold_starts(build(*rows))
    assert finding.measures["loader_start_ns"] == pytest.approx(1_300_000_000, rel=0.01)


def test_a_seed_that_old_versions_draw_in_two_ops_is_followed_by_the_start_of_workers() -> None:
    """The silence behind it was looked for between the two: 162 ms were host-bound, in the loader."""
    rows = [op("aten::random_", 5, 40), op("aten::random_", 20, 20), op("aten::is_floating_point", 50, 1)]
    rows += [op("aten::randperm", 400_000, 50), op("enumerate(DataLoader)#_MultiProcessing.__next__", 500_000, 100)]
    rows += [op("aten::mm", 500_200, 90), launch(500_210, 5, 1), kernel("gemm", 500_220, 100_000, 1)]
    (finding,) = cold_starts(build(*rows))
    assert finding.measures["loader_start_ns"] == pytest.approx(500_095_000, rel=0.001)


@pytest.mark.parametrize("num_epochs", [1, 2])
def test_the_end_of_a_loaders_workers_is_once_unless_others_start_again(num_epochs: int) -> None:
    """Of the last 2.5 s of an evaluation was said that more workers, or less work per sample, would shorten them."""
    rows = []
    for begin in range(0, 2_000_000 * num_epochs, 2_000_000):
        rows += [op("aten::random_", begin + 5, 5), frame(CREATION, begin + 8, 400_000)]
        rows += [op("enumerate(DataLoader)#_MultiProcessing.__next__", begin + 400_020, 100_000)]
        rows += [op("aten::mm", begin + 500_200, 90), frame(END, begin + 600_000, 900_000)]
    (finding,) = cold_starts(build(*rows))
    assert finding.measures["loader_start_ns"] == pytest.approx(500e6 + 900e6 * (num_epochs == 1), rel=0.001)


def test_where_no_frames_are_recorded_workers_end_as_the_loop_asks_for_a_batch_and_takes_none() -> None:
    """105 of the 567 ms that were said to recur."""
    rows = [op("aten::random_", 5, 5)]
    for begin, us, takes in ((400_000, 900_000, True), (1_400_000, 20_000, True), (1_500_000, 200_000, False)):
        rows += [op("enumerate(DataLoader)#_MultiProcessing.__next__", begin, us)]
        rows += [op("aten::empty", begin + us - 10, 5)] * takes
    (finding,) = cold_starts(build(*rows, op("aten::mm", 1_450_000, 90)))
    assert finding.measures["loader_start_ns"] == pytest.approx(1_500e6, rel=0.001)
    (finding,) = cold_starts(build(*rows, frame(CREATION, 8, 300_000), op("aten::mm", 1_450_000, 90)))
    assert finding.measures["loader_start_ns"] == pytest.approx(1_300e6, rel=0.001)  # a batch that had come before


def test_a_cold_start_names_the_steps_that_have_it() -> None:
    rows = [op("aten::zeros", 1, 400_000), call("cudaMalloc", 399_999, 1)]
    for n in range(3):
        start = 401_000 + 1_000 * n
        rows += [step(0 if n == 0 else start, start + 1_000 if n == 0 else 1_000, n)]
        rows += [launch(start + 10, 2, n + 1), kernel("add", start + 20, 980, n + 1)]
    (finding,) = cold_starts(build(*rows))
    assert [finding.measures[name] for name in ("num_steps_with", "num_counted")] == [1, 3]


def test_a_library_that_starts_by_a_free_is_a_cold_start_and_no_allocation() -> None:
    """CuDNN and cuBLAS free nothing at first; an allocator that frees because it must waits for the device first."""

    def freeing(first_kernel_us: float) -> Trace:
        rows = [op("aten::add", 1, 30), launch(2, 3, 1), kernel("add", 6, first_kernel_us, 1)]
        rows += [op("aten::cudnn_convolution", 100, 400_200), call("cudaFree", 150, 400_000)]
        return build(step(0, 400_500), *rows, launch(400_200, 5, 2), kernel("conv", 400_210, 10, 2))

    starts, waits = freeing(20), freeing(300_000)
    (finding,) = cold_starts(starts)
    assert finding.ns == pytest.approx(400_000_000, rel=1e-3)
    assert finding.measures["library_start_of"] == "cudaFree"
    assert table(starts, "syncs") == []
    assert cold_starts(waits) == []
    assert [(row["kind"], row["blocked_ns"]) for row in table(waits, "syncs")] == [("alloc", 400_000_000)]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([("cudaFree", 12_000), ("cudaFree", 80_000), ("cudaDeviceGetAttribute", 1)], 92_000_000),
        ([("cudaFree", 80_000), ("cudaMalloc", 1), ("cudaDeviceGetAttribute", 1)], 0),
        ([("cudaFree", 900), ("cudaDeviceGetAttribute", 1)], 0),
    ],
)
def test_a_short_free_starts_a_library_where_its_op_then_asks_what_the_device_can_do(
    calls: list[tuple[str, int]], expected: int
) -> None:
    """An allocator that frees memory allocates next; after a free of less than 1 ms nothing was loaded."""

    def freeing(op_us: int) -> Trace:
        rows = [op("aten::add", 1, 30), launch(2, 3, 1), kernel("add", 6, 20, 1), op("aten::addmm", 100, op_us)]
        now = 110
        for name, took in calls:
            rows.append(call(name, now, took))
            now += took + 5
        return build(step(0, 100_000), *rows, launch(now, 5, 2), kernel("gemm", now + 10, 10, 2))

    inside, before_the_op_ends = freeing(99_000), freeing(20)
    assert int(inside.events.dur[library_loading_calls(inside)].sum()) == expected
    assert len(library_loading_calls(before_the_op_ends)) == 0
    frees = sum(name != "cudaDeviceGetAttribute" for name, _ in calls)
    assert sum(row["num"] for row in table(inside, "syncs")) == (0 if expected else frees)


@pytest.mark.parametrize(("took_us", "expected"), [(200_000, 500_000_000), (90_000, 300_000_000)])
def test_a_library_that_starts_by_creating_a_stream_is_a_cold_start(took_us: int, expected: int) -> None:
    """A stream is created in microseconds, unless the code of cuDNN is loaded first."""
    rows = [op("aten::cudnn_convolution", 10, 600_000), call("cudaStreamCreateWithFlags", 20, took_us)]
    rows += [call("cudaFree", 250_000, 300_000), launch(600_000, 5, 1), kernel("conv", 600_010, 10, 1)]
    trace = build(step(0, 5), step(5, 700_000, 1), op("aten::empty", 6, 2), call("cudaDeviceGetAttribute", 7, 1), *rows)
    (finding,) = cold_starts(trace)
    assert finding.measures["library_start_of"] == "cudaFree"
    assert finding.measures["library_start_ns"] == pytest.approx(expected, rel=0.01)


def test_a_launch_that_takes_long_each_time_or_behind_a_full_queue_loads_nothing() -> None:
    rows = [step(0, 400_000)]
    for n in range(60):
        rows += [launch(5_000 * n + 1, 4_000, n + 1), kernel("add", 5_000 * n + 4_500, 9, n + 1)]
    assert len(kernel_loading_calls(build(*rows))) == 0
    queue = [step(0, 400_000)]
    for n in range(1_000):
        queue += [launch(5 * n + 1, 3, n + 1), kernel("add", 6_000 + 100 * n, 100, n + 1)]
    behind = [launch(5_100, 2_000, 2_000), kernel("gemm", 106_100, 100, 2_000)]
    assert len(kernel_loading_calls(build(*queue, *behind))) == 0
    assert len(kernel_loading_calls(build(*queue[:801], *behind))) == 1


def captures(length: int, *more: Event) -> list[Claim]:
    """Those of a step of 1,000 us with a kernel of 20, whose host then captures a graph for `length`."""
    graph = call("cudaStreamBeginCapture", 100, 1), call("cudaStreamEndCapture", 100 + length, 1)
    rows = [step(0, 1_000), launch(2, 2, 1), kernel("fill", 5, 20, 1), op("capture", 90, length + 20), *graph, *more]
    return cold_starts(build(*rows))


@pytest.mark.parametrize("more", [(), (launch(950, 2, 2), kernel("fill", 960, 20, 2))], ids=["alone", "before work"])
def test_a_graph_is_captured_once(more: tuple[Event, ...]) -> None:
    (finding,) = captures(800, *more)
    assert finding.ns == pytest.approx(820_000, rel=0.02)
    assert finding.measures["graph_capture_ns"] == pytest.approx(810_000, rel=0.02)
    assert captures(50, *more) == []


def test_a_first_call_is_not_host_bound_time_of_later_steps() -> None:
    """Five convolutions, of which the first is slow, each followed by a kernel of 10."""
    rows, start = [step(-20, 20, 0), launch(-15, 2, 99), kernel("add", -12, 5, 99)], 0.0
    for number, us in enumerate((5_000, 100, 100, 100, 100), 1):
        rows += [op("aten::cudnn_convolution", start, 0.98 * us), launch(start + 0.9 * us, 2, number)]
        rows += [kernel("conv", start + us, 10, number)]
        start += us + 10
    findings = analyze(Run("", (build(*rows, step(0, start, 1)),)), "partition").findings
    ns = {finding.code: finding.ns for finding in findings}
    assert ns["cold_start"] == pytest.approx(4_500_000, rel=0.01)
    assert ns["host_bound"] == pytest.approx(400_000, rel=0.1)


@pytest.mark.parametrize("load_ms", [0, 80])
def test_the_device_is_not_judged_by_the_little_that_is_left_at_the_end(load_ms: float) -> None:
    """The last of 60 launches loads its kernel, and 200 us of steps are behind it."""
    (finding,) = cold_starts(cold(400, load_ms))
    assert ("busy_after_pct" in finding.measures) == (load_ms == 0)


@pytest.mark.parametrize("start_us", [0, 400_000], ids=["warm", "cold"])
def test_shares_of_what_an_op_and_casts_take_are_of_the_time_without_a_cold_start(start_us: int) -> None:
    """Of 10 ms a product takes 6 and a cast 2, as they do in each later step; a start of 400 hid both."""
    half = ["c10::BFloat16", "c10::BFloat16"]
    rows = [op("aten::zeros", 1, start_us - 2), call("cudaMalloc", start_us - 3, 1)] if start_us else []
    rows += [op("aten::mm", start_us, 10, **{"Input Dims": [[1000, 500], [500, 1000]], "Input type": half})]
    rows += [launch(start_us + 1, 1, 1), kernel("gemm", start_us + 100, 6_000, 1)]
    rows += [op("aten::copy_", start_us + 20, 10, **{"Input Dims": [[8], [8]], "Input type": ["float", half[0]]})]
    rows += [launch(start_us + 21, 1, 2), kernel(COPY, start_us + 6_100, 2_000, 2)]
    rows += [call("cudaDeviceSynchronize", start_us + 40, 8_060)]
    run = Run("", (build(step(0, start_us + 10_000), *rows),))
    with replaced_peaks(("bf16=1", "memory=100")):
        claims = {each.code: each for name in ("efficiency", "kernels") for each in analyze(run, name).findings}
    assert set(claims) == {"below_roof", "casts"}
    assert claims["casts"].measures["share_pct"] == pytest.approx(20, rel=0.01)
    assert claims["casts"].measures.get("share_of") == ("rest" if start_us else None)
