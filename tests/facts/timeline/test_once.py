"""What of the host's time is once: first calls of ops, captures of CUDA graphs. Times in us."""

from __future__ import annotations

import pytest
from builder import Event, build, call, frame, kernel, launch, memcpy, op, row, step, table

from traceq.analysis.registry import analyze
from traceq.facts.stalls.idle_time import lost_once
from traceq.facts.stalls.syncs import is_of_timing
from traceq.facts.timeline.once import OnceKind, capture_times, first_calls, once
from traceq.intervals import measure
from traceq.model import Run, Trace


def convolutions(first_us: float, *later_us: float) -> list[Event]:
    """Convolutions one after the other, each inside another op, with 10 us in between."""
    rows, start = list[Event](), 0.0
    for us in (first_us, *later_us):
        rows += [op("aten::conv2d", start, us), op("aten::cudnn_convolution", start + 0.01 * us, 0.98 * us)]
        rows += [launch(start + 0.9 * us, 1, len(rows)), kernel("conv", start + us, 5, len(rows))]
        start += us + 10
    return rows


def names(trace: Trace) -> list[str]:
    return [trace.events.strings[name] for name in trace.events.name[first_calls(trace)].tolist()]


@pytest.mark.parametrize(
    ("us", "is_slow"),
    [
        ((5000, 90, 100, 110, 2000), True),
        ((5000, 90, 100, 110, 2600), False),  # that recurs
        ((5000, 90, 100, 110), True),
        ((5000, 90, 600), False),
        ((5000, 600, 600, 600, 600), False),
        ((900, 10, 10, 10, 10), False),
        ((100, 5000, 100, 100, 100, 100), False),  # not the first, and not a hundred times
        ((100, 15000, 100, 100, 100, 100), True),  # compiled for what the first call saw
        ((100, 15000, 100, 100, 100), False),
        ((100, 100, 15000, 100, 100, 100, 100), True),
        ((100, 100, 100, 15000, 100, 100, 100, 100), False),
    ],
)
def test_a_first_call_is_slow_beside_the_median_of_later_ones(us: tuple[float, ...], is_slow: bool) -> None:
    assert names(build(*convolutions(*us))) == ["aten::conv2d", "aten::cudnn_convolution"] * is_slow


@pytest.mark.parametrize(
    ("host_us", "launch_us", "is_slow"),
    [
        (1200, 10, False),
        (120, 1090, True),  # their launches wait for a place in the queue
    ],
)
def test_later_calls_that_the_device_hides_may_be_as_slow_as_the_first(
    host_us: int, launch_us: int, is_slow: bool
) -> None:
    """Of five replays of a graph each took the host 0.6 ms, and only the first, of 1.5 ms, found the device idle."""
    rows: list[Event] = [op("region", 0, 1500), launch(1480, 10, 1), kernel("graph", 1500, 2000, 1)]
    for number in range(2, 7):
        start = 1500 * (number - 1)
        rows += [op("region", start, host_us + launch_us), launch(start + host_us, launch_us, number)]
        rows.append(kernel("graph", 1500 + 2000 * (number - 1), 2000, number))
    assert names(build(*rows)) == ["region"] * is_slow


@pytest.mark.parametrize(("sizes", "is_slow"), [((9, 9, 9), True), ((9, 8, 7), False)])
def test_without_a_device_an_op_that_is_called_once_with_its_shape_may_be_as_long_again(
    sizes: tuple[int, ...], is_slow: bool
) -> None:
    """The layers at both ends of a network took 7.69 of 42.3 s, in each pass, and were told to be first calls."""
    times = (500_000, 200, 200)
    ops = [
        op("aten::addmm", 1e6 * number, us, **{"Input Dims": [[size, size]]})
        for number, (us, size) in enumerate(zip(times, sizes, strict=True))
    ]
    assert names(build(*ops)) == ["aten::addmm"] * is_slow


@pytest.mark.parametrize(("first_ms", "num_later", "is_slow"), [(500, 10, True), (400, 10, False), (500, 9, False)])
def test_without_a_device_and_shapes_the_first_of_many_calls_takes_ten_times_the_longest(
    first_ms: int, num_later: int, is_slow: bool
) -> None:
    calls = [op("aten::conv2d", 0, 1000 * first_ms)]
    calls += [op("aten::conv2d", 600_000 + 60_000 * n, 45_000 if n else 5_000) for n in range(num_later)]
    assert names(build(*calls)) == ["aten::conv2d"] * is_slow


def test_an_op_in_which_a_library_times_kernels_is_a_first_call_and_its_waits_are_none_of_the_job() -> None:
    """CuDNN waited 357 times while it tried kernels, of which was said that without them 432 ms were saved."""
    tries = [
        op("aten::cudnn_convolution", 0, 2000),
        *(launch(10, 5, 1), kernel("tried", 20, 600, 1), call("cudaEventSynchronize", 30, 600)),
        *(call("cudaEventElapsedTime", 640, 2), launch(1900, 5, 2), kernel("chosen", 1950, 100, 2)),
        *(op("aten::relu", 2010, 10), launch(2012, 5, 3), kernel("relu", 2060, 5, 3)),
    ]
    trace = build(*tries)
    assert OnceKind.FIRST_CALL in once(trace).kind
    assert is_of_timing(trace).tolist() == [True]
    assert {row["category"]: row["dur_ns"] for row in table(trace, "partition")}["compute"] == 105_000
    assert "joint_syncs" not in [claim.code for claim in analyze(Run("", (trace,)), "syncs").findings]


@pytest.mark.parametrize(("calls", "is_slow"), [([launch(1_900, 5, 1)], True), ([], False)], ids=["device", "host"])
def test_the_first_copy_that_asks_a_device_for_it_takes_long_for_another_reason(
    calls: list[Event], is_slow: bool
) -> None:
    """A question to the runtime took 1.05 of 1.08 ms, a third of what was told of the host."""
    copies = [op("aten::copy_", 10_000 * n, 20) for n in range(1, 6)]
    launches = [launch(10_000 * n + 5, 5, n + 1) for n in range(1, 6)] if calls else [launch(99_000, 5, 1)]
    work = [kernel("copy", 10_000 * n + 2_000, 5, n + 1) for n in range(6)]
    assert names(build(op("aten::copy_", 0, 2_000), *calls, *copies, *launches, *work)) == ["aten::copy_"] * is_slow


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        ([launch(20, 800, 1)], OnceKind.KERNEL_LOADING),
        ([call("cudaFuncGetAttributes", 20, 800), launch(900, 5, 1)], OnceKind.KERNEL_LOADING),
        ([launch(900, 5, 1)], OnceKind.PROFILER),
    ],
)
def test_overhead_that_torch_does_not_know_is_of_loading_in_a_call_and_else_the_profilers(
    calls: list[Event], kind: OnceKind
) -> None:
    """A launch of 8.79 ms held 8.73 ms of it, and `shorten what the host does` was said of its op."""
    unknown = row("overhead", "Unrecognized", 25, 790, tid=0)
    assert once(build(op("aten::fill_", 10, 920), *calls, kernel("fill", 950, 5, 1), unknown)).kind.tolist() == [kind]


def test_the_longest_load_is_that_of_the_call_whose_parts_take_longest() -> None:
    """A launch loads for 400 and 500, in two rows; a call that asks for a variable's address for 1,200 is longer."""
    fills = op("aten::fill_", 10, 950), launch(15, 940, 1), kernel("fill", 960, 5, 1)
    parts = [row("overhead", "Unrecognized", ts, dur, tid=0) for ts, dur in ((20, 400), (430, 500), (1_010, 600))]
    short = launch(1_000, 650, 2), kernel("gemm", 1_700, 5, 2)
    (lost,) = lost_once(build(step(0, 5_000), *fills, *short, *parts))
    assert (lost.kind, lost.name, lost.ns) == (OnceKind.KERNEL_LOADING, "aten::fill_", 1_500_000)
    asks = op("aten::conv2d", 2_000, 2_000), call("cudaGetSymbolAddress", 2_100, 1_200)
    assert lost_once(build(step(0, 5_000), *fills, *short, *parts, *asks))[0].name == "cudaGetSymbolAddress"


@pytest.mark.parametrize(("us", "is_slow"), [(9_000, False), (11_000, True)])
def test_the_only_call_of_an_op_that_loads_kernels_is_a_first_one_from_ten_milliseconds_on(
    us: int, is_slow: bool
) -> None:
    """A cuDNN's only convolution took 94 ms, 19 of them to load kernels, and 73.6 were `host-bound`."""
    loads = row("overhead", "Lazy Function Loading", 100, 2_000, tid=0)
    rows = [op("aten::cudnn_convolution", 0, us + 2_010), loads, launch(us + 2_000, 5, 1)]
    assert names(build(*rows, kernel("conv", us + 2_020, 5, 1))) == ["aten::cudnn_convolution"] * is_slow


def test_what_the_profiler_does_where_a_step_begins_is_its_own() -> None:
    """A mean step of 73.4 ms had 33.5 ms of Python in forward: 29.7 of these were the profiler's."""
    profilers = frame("torch/profiler/profiler.py(838): step", 1000, 90_000), frame("main.py(7): train", 0, 200_000)
    times = once(build(step(900, 150_000), op("aten::mm", 92_000, 10), *profilers))
    assert (times.kind.tolist(), measure(times.parts)) == ([OnceKind.PROFILER], 90_000_000)


def test_both_of_two_slow_calls_are_slow() -> None:
    assert names(build(*convolutions(5000, 15000, *[100] * 9))) == ["aten::conv2d", "aten::cudnn_convolution"] * 2


def launched_after(*waits_us: float) -> Trace:
    return build(*launched_rows(*waits_us))


def launched_rows(*waits_us: float) -> list[Event]:
    """Pairs of ops of one kernel each, and waits of the host in the second, before it launches."""
    rows, start = list[Event](), 0.0
    for number, us in enumerate(waits_us, 1):
        for name, wait_us, corr in (("aten::mm", 5, 2 * number), ("aten::sum", us, 2 * number + 1)):
            start += wait_us
            rows += [op(name, start - wait_us + 1, wait_us + 9), launch(start + 1, 5, corr)]
            rows += [kernel(name, start + 12, 5, corr)]
            start += 20
    return rows


@pytest.mark.parametrize(
    ("waits_us", "once_us"),
    [
        ((5000, 90, 100), 5000),
        ((5000, 90, 100, 3000), 0),  # that recurs
        ((5000, 900, 900), 0),
        ((100, 5000, 100), 0),  # not the first
        ((5000,), 0),  # nothing tells how long it takes
        ((900, 10, 10), 0),
    ],
)
def test_what_the_host_does_before_the_first_launch_of_a_kernel_is_a_first_call(
    waits_us: tuple[float, ...], once_us: float
) -> None:
    times = once(launched_after(*waits_us))
    of_first = times.kind == OnceKind.FIRST_CALL
    assert measure(times.parts[of_first]) == pytest.approx(once_us * 1000, abs=50_000)


def test_what_the_program_does_before_an_op_that_launches_a_new_kernel_may_come_again() -> None:
    """6.18 ms of a loop in Python, which comes with each image, were a first call."""
    rows = launched_rows(5000, 90, 100)
    apart = [
        {**each, "ts": each["ts"] + 4_990, "dur": each["dur"] - 4_990} if each["dur"] > 4_990 else each for each in rows
    ]
    assert len(once(build(*rows)).parts) == 1
    assert len(once(build(*apart)).parts) == 0


def test_its_name_is_that_of_the_op_that_launches() -> None:
    trace = launched_after(5000, 90, 100)
    (row,) = once(trace).row
    assert trace.events.strings[trace.events.name[row]] == "aten::sum"


def test_the_time_before_a_kernel_that_ran_before_is_no_first_call_though_it_follows_another_one_now() -> None:
    trace = launched_after(5000, 90, 100)
    before = op("aten::sum", -40, 10), launch(-39, 5, 99), kernel("aten::sum", -20, 5, 99)
    events = [op("aten::mm", -200, 10), launch(-199, 5, 98), kernel("other", -150, 5, 98), *before]
    assert len(once(trace).parts) == 1
    assert len(once(build(*events, *launched_rows(5000, 90, 100))).parts) == 0


def test_what_a_single_step_begins_its_optimizer_with_may_be_in_each_step() -> None:
    rows, start = list[Event](), 5000.0
    for number in range(1, 40):
        rows += [op("aten::add_", start, 10), launch(start + 1, 5, number), kernel("add", start + 12, 5, number)]
        start += 20
    before = [op("aten::mm", 0, 10), launch(1, 5, 90), kernel("mm", 12, 5, 90)]
    assert len(once(build(*before, *rows)).parts) == 0


def compiled_first(*between: Event, prepares_us: int = 50) -> Trace:
    """A copy to the device after `prepares_us`, and 400 ms later the launch of a kernel that Triton compiled."""
    copied = prepares_us + 20
    return build(
        call("cudaGetDeviceCount", 0, 1),
        call("cudaMemcpyAsync", prepares_us, 20, 1),
        memcpy("HtoD (Pinned -> Device)", copied, 5, 1),
        *[{**each, "ts": each["ts"] + copied} for each in between],
        row("cuda_driver", "cuLaunchKernel", copied + 400_000, 10, correlation=2),
        kernel("triton_poi_fused_copy_0", copied + 400_020, 5, 2),
    )


def ms_of(trace: Trace) -> dict[OnceKind, int]:
    times = once(trace)
    return {OnceKind(kind): round(measure(times.parts[times.kind == kind]) / 1e6) for kind in times.kind.tolist()}


def test_a_compiler_that_waits_for_an_idle_device_goes_on_compiling() -> None:
    waits = [call("cudaDeviceSynchronize", start, 10) for start in (310_000, 350_000)]
    assert ms_of(compiled_first(*waits)) == {OnceKind.COMPILING: 400}


def test_what_is_launched_between_ends_what_a_compiler_takes() -> None:
    assert ms_of(compiled_first(launch(100_000, 10, 3), kernel("fill", 100_020, 5, 3))) == {OnceKind.COMPILING: 300}


def test_a_pause_before_a_copy_is_once_where_the_host_compiles_too() -> None:
    """Of an iteration that does not compile the host may have prepared what it copies."""
    trace = compiled_first(prepares_us=9_000_000)
    assert ms_of(trace) == {OnceKind.COMPILING: 400, OnceKind.PAUSE: 9000}
    (claim,) = (each for each in analyze(Run("", (trace,)), "partition").findings if each.code == "cold_start")
    assert claim.measures["what"] == "a cold start"
    copies = [call("cudaMemcpyAsync", 9_000_000, 20, 1), memcpy("HtoD (Pinned -> Device)", 9_000_020, 5, 1)]
    assert ms_of(build(call("cudaGetDeviceCount", 0, 1), *copies)) == {}


def test_a_capture_is_once_also_where_torch_counts_it_as_compiling() -> None:
    compiles = op("CUDAGraphNode.record (dynamo_timed)", 100, 170)
    cells = {row["category"]: row["dur_ns"] for row in table(compiled(compiles), "partition") if row["dur_ns"]}
    assert (cells["once"], cells["compiling"]) == (50_000, 120_000)


def compiled(*around: Event, begin: int = 200) -> Trace:
    """An op, a capture of 50 that is replayed 20 after it, and an op that waits for nothing; `around` is added."""
    return build(
        step(0, 1000),
        op("aten::copy_", 0, 5),
        launch(1, 2, 1),
        kernel("copy", 4, 10, 1),
        call("cudaStreamBeginCapture", begin, 2),
        call("cudaStreamEndCapture", begin + 50, 2),
        call("cudaGraphLaunch", begin + 70, 5, 2),
        kernel("graph", begin + 80, 100, 2),
        op("aten::add", 900, 10),
        launch(901, 2, 3),
        kernel("add", 905, 90, 3),
        *around,
    )


def us(trace: Trace) -> list[list[float]]:
    return (capture_times(trace) / 1000).tolist()


def filling(num: int) -> list[Event]:
    return [row for n in range(num) for row in (launch(150 + 10 * n, 2, 8 + n), kernel("fill", 155 + 10 * n, 2, 8 + n))]


@pytest.mark.parametrize(("num_filled", "since"), [(0, 50), (2, 50), (3, 152)])
def test_a_graph_takes_the_time_between_launches_in_the_op_that_captures_it(num_filled: int, since: int) -> None:
    """Two launches before it fill the seed and the offset of random numbers; a third one is work of the op."""
    region = op("Torch-Compiled Region", 50, 400), op("aten::mm", 190, 70)
    assert us(compiled(*region, *filling(num_filled))) == [[since, 270]]


def test_the_op_bounds_what_a_graph_takes() -> None:
    assert us(compiled(op("Torch-Compiled Region", 120, 140))) == [[120, 260]]


def test_a_graph_is_complete_once_it_can_be_launched() -> None:
    """Also outside of an op; the call belongs to the last capture before it."""
    calls = [("StreamBeginCapture", 0, 2), ("StreamEndCapture", 20, 2), ("StreamBeginCapture", 40, 2)]
    calls += [("StreamEndCapture", 60, 2), ("GraphInstantiateWithFlags", 70, 30), ("GraphLaunch", 120, 5)]
    trace = build(step(0, 400), *(call(f"hip{name}", start, us) for name, start, us in calls))
    assert us(trace) == [[0, 20], [40, 100]]


@pytest.mark.parametrize(("num_filled", "since"), [(0, 120), (2, 120), (3, 200)])
def test_outside_of_an_op_torch_prepares_a_capture_from_its_synchronization_on(num_filled: int, since: int) -> None:
    """It collects garbage and frees memory behind it; what waits and allocates then does so once."""
    calls = call("cudaDeviceSynchronize", 60, 5), call("cudaDeviceSynchronize", 120, 5), call("cudaFree", 130, 15)
    trace = compiled(*calls, *filling(num_filled))
    assert us(trace) == [[since, 250]]
    allocating_ns = sum(row["dur_ns"] for row in table(trace, "partition") if row["category"] == "alloc_wait")
    assert allocating_ns == (0 if since == 120 else 15_000)


def captured_and_replayed(*names_and_replays: tuple[str, int]) -> Trace:
    """Captures of an op of a name in turn, each replayed as often."""
    rows = list[Event]()
    for n, (name, num_replays) in enumerate(names_and_replays):
        start, corr = 100 * n, 10 * n
        rows += [call("cudaStreamBeginCapture", start, 1), op(name, start + 2, 10), launch(start + 3, 2, corr + 9)]
        rows += [call("cudaStreamEndCapture", start + 20, 1)]
        for index in range(num_replays):
            at_us, replay = start + 30 + 10 * index, corr + index
            rows += [call("cudaGraphLaunch", at_us, 2, replay), kernel(f"k_{name}", at_us + 3, 5, replay)]
    return build(step(0, 1000), *rows)


@pytest.mark.parametrize(
    ("graphs", "begins"),
    [
        ([("f", 2), ("f", 2), ("f", 1)], []),  # captured, replayed, captured again
        ([("f", 1), ("f", 1), ("f", 1)], [0, 100, 200]),  # layers alike, of which each runs its graph in the same pass
        ([("f", 0), ("f", 0), ("f", 0)], [0, 100, 200]),
        ([("f", 3), ("g", 3)], [0, 100]),
        ([("f", 1), ("g", 1), ("f", 3), ("g", 1)], [0, 200]),  # nothing but f's second graph may be another layer's
    ],
)
def test_a_graph_that_is_captured_again_after_it_was_replayed_is_not_once(
    graphs: list[tuple[str, int]], begins: list[float]
) -> None:
    assert [begin for begin, _ in us(captured_and_replayed(*graphs))] == begins


@pytest.mark.parametrize("around", [[], [op("aten::mm", 50, 400, tid=3)]], ids=["none", "another thread's"])
def test_without_an_op_of_its_thread_only_the_capture_is_known(around: list[Event]) -> None:
    """The host may do anything before it, such as wait for requests."""
    assert us(compiled(*around)) == [[200, 250]]
    assert us(build(step(0, 10), op("aten::mm", 1, 5))) == []
