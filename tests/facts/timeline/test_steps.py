"""Steps, their windows, and which call launched what."""

from __future__ import annotations

import pytest
from builder import OTHER, Event, annotation, build, call, frame, kernel, launch, memset, op, row, step, table

from traceq.analysis.registry import analyze
from traceq.facts.events.device_work import device_work
from traceq.facts.timeline.steps import extent, steps
from traceq.model import Run, Trace


def windows(trace: Trace) -> list[tuple[int, int]]:
    """Windows in us."""
    return [(start // 1000, end // 1000) for start, end in steps(trace).window.tolist()]


def launches(trace: Trace) -> dict[str, int]:
    """Start in us of the call that launched each piece of device work; -1 without one."""
    work = device_work(trace)
    starts = [trace.events.ts[call] // 1000 if call >= 0 else -1 for call in work.call]
    return {trace.events.text(row): int(start) for row, start in zip(work.rows, starts, strict=True)}


RUNS_AHEAD = (
    step(0, 10, 7),
    launch(2, 1, corr=1),
    step(10, 10, 8),
    launch(12, 1, corr=2),
    kernel("a", 15, 15, corr=1),
    kernel("b", 30, 20, corr=2),
)


def test_a_host_that_runs_ahead_does_not_shorten_the_step() -> None:
    rows = table(build(*RUNS_AHEAD), "steps")
    keys = ("name", "dur_ns", "window", "window_ns", "partial", "lag_ns")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        ("ProfilerStep#7", 10_000, "device", 30_000, True, 20_000),
        ("ProfilerStep#8", 10_000, "device", 20_000, False, 30_000),
    ]


def test_windows_telescope_over_work_that_outlives_the_next_step() -> None:
    long = (step(0, 10), launch(2, 1, 1), step(10, 10, 1), launch(12, 1, 2), step(20, 10, 2), launch(22, 1, 3))
    done = (kernel("a", 3, 40, 1), kernel("b", 45, 5, 2), kernel("c", 50, 20, 3))
    assert windows(build(*long, *done)) == [(0, 43), (43, 50), (50, 70)]


def test_a_step_lasts_to_its_latest_end_not_to_the_end_of_its_last_launch() -> None:
    streams = launch(2, 1, 1), kernel("long", 4, 50, 1), launch(5, 1, 2), kernel("short", 8, 4, 2, stream=8)
    trace = build(step(0, 10), *streams, step(10, 10, 1), launch(12, 1, 3), kernel("b", 60, 5, 3))
    assert windows(trace) == [(0, 54), (54, 65)]


def test_where_a_step_would_get_no_time_all_windows_are_the_hosts() -> None:
    trace = build(
        step(0, 10), launch(2, 1, 1), step(10, 10, 1), launch(12, 1, 2), kernel("a", 3, 60, 1), kernel("b", 13, 9, 2)
    )
    assert windows(trace) == [(0, 10), (10, 20)]
    assert table(trace, "steps")[0]["window"] == "host"


def test_without_a_device_steps_are_windowed_as_the_host_ran_them() -> None:
    assert windows(build(step(0, 10), op("aten::mm", 1, 2), step(12, 10, 1))) == [(0, 10), (12, 22)]


def test_the_only_step_lasts_until_its_device_work_is_done() -> None:
    """No other would count the rest of it."""
    assert windows(build(step(5, 20), launch(6, 1, 1), kernel("a", 10, 90, 1))) == [(5, 100)]
    assert windows(build(step(5, 20), launch(6, 1, 1), kernel("a", 10, 9, 1))) == [(5, 25)]


def test_the_only_step_of_an_inference_engine_ends_with_its_device_work() -> None:
    mark = annotation("execute_context_1(8)_generation_0(0)", 5, 20)
    assert windows(build(mark, launch(6, 1, 1), kernel("a", 10, 9, 1))) == [(5, 19)]


def test_the_only_step_tells_what_no_step_among_others_has() -> None:
    def notes(*rows: Event) -> list[str]:
        return [caveat.text for caveat in analyze(Run("", (build(*rows),)), "steps").caveats]

    only = step(5, 20, 3), launch(6, 1, 1)
    late, early = "ends 75.0 us after the host's", "3.00 us of it is work"
    (note,) = notes(*only, kernel("a", 10, 90, 1))
    assert note.startswith("rank 0: ProfilerStep#3 is the only step")
    assert (late in note, early in note) == (True, False)
    (note,) = notes(*only, kernel("old", 2, 6), kernel("a", 10, 90, 1))
    assert (late in note, early in note) == (True, True)
    assert notes(*only, kernel("a", 10, 9, 1)) == []


def test_a_first_window_with_work_from_before_the_trace_is_left_out_of_means() -> None:
    trace = build(kernel("old", 4, 5), *RUNS_AHEAD)
    assert steps(trace).partial.tolist() == [True, False]
    summary = analyze(Run("", (trace,)), "steps").views[0]
    mean = dict(zip((column.key for column in summary.columns), summary.rows[0], strict=True))
    assert (mean["num"], mean["mean_ns"]) == (1, 20_000.0)
    assert "1 partial window" in summary.note


KEEPS_UP = (
    step(0, 10),
    launch(2, 1, 1),
    kernel("a", 4, 5, 1),
    step(10, 10, 1),
    launch(12, 1, 2),
    kernel("b", 14, 5, 2),
)


def test_work_from_before_the_trace_that_ended_before_the_first_step_spoils_nothing() -> None:
    assert steps(build(kernel("old", -9, 5), *KEEPS_UP)).partial.tolist() == [False, False]
    assert steps(build(kernel("old", 1, 2), *KEEPS_UP)).partial.tolist() == [True, False]


@pytest.mark.parametrize(("end", "partial"), [(10.01, False), (10.02, True)])
def test_a_first_window_that_ends_with_a_lagging_device_is_longer_than_a_step(end: float, partial: bool) -> None:
    """It begins with the host: 10 us of step and the lag, of which 0.1 % does not matter."""
    first = step(0, 10), launch(2, 1, 1), kernel("a", 4, end - 4, 1)
    assert steps(build(*first, step(10, 10, 1), launch(12, 1, 2), kernel("b", 14, 9, 2))).partial[0] == partial


def test_the_program_ends_where_the_profiler_stops() -> None:
    """Its frames are open until then, and what the profiler waits for is none of its syncs."""
    stop = frame("torch/profiler/profiler.py(698): __exit__", 30, 70), call("cudaDeviceSynchronize", 40, 50)
    trace = build(
        op("aten::add", 0, 10), frame("train.py(3): <module>", 0, 100), frame("train.py(9): log", 12, 8), *stop
    )
    assert extent(trace) == (0, 30_000)
    assert not table(trace, "syncs")
    assert extent(build(frame("train.py(3): <module>", 0, 100), stop[0])) == (0, 100_000)


@pytest.mark.parametrize(("num_calls", "partial"), [((10, 10, 5), True), ((10, 10, 9), False), ((5, 10, 5), False)])
def test_a_last_step_whose_calls_were_lost_is_partial(num_calls: tuple[int, ...], partial: bool) -> None:
    """Its ops go on; steps that all end with ops that launch nothing are whole."""
    events: list[Event] = []
    for number, num in enumerate(num_calls):
        begin = 100 * number
        events += [step(begin, 100, number), *(op("aten::add", begin + 10 * index, 8) for index in range(10))]
        for index in range(num):
            start, corr = begin + 10 * index, 100 * number + index + 1
            events += [launch(start + 1, 1, corr), kernel("k", start + 3, 2, corr)]
    assert steps(build(*events)).partial.tolist() == [False, False, partial]


def test_a_trace_without_steps_is_one_step_and_says_so() -> None:
    trace = build(op("aten::mm", 5, 10), launch(7, 1, 1), kernel("a", 30, 10, 1))
    assert (steps(trace).names, windows(trace)) == (("whole trace",), [(5, 40)])
    assert [caveat.code for caveat in analyze(Run("", (trace,)), "steps").caveats] == ["no_steps"]


def test_a_mark_in_which_nothing_is_asked_for_is_what_a_stopping_profiler_leaves() -> None:
    """The mark of the one step that was recorded began before the profiler did."""
    assert steps(build(op("aten::mm", 5, 10), step(30, 2))).names == ("whole trace",)
    assert steps(build(op("aten::mm", 31, 1), step(30, 2, 4))).names == ("ProfilerStep#4",)


def test_work_that_ended_before_the_host_was_recorded_is_of_what_came_before() -> None:
    """In a trace of 3.9 s the first 3.8 were said to be unrecorded, and nothing was said of the other 84 ms."""
    before = kernel("before", 0, 20, 90)
    after = op("aten::mm", 3000, 10), launch(3002, 5, 1), kernel("mm", 3010, 40, 1)
    assert windows(build(before, *after)) == [(3000, 3050)]
    assert windows(build(kernel("before", 0, 3005, 90), *after)) == [(3000, 3050)]
    assert windows(build(before, call("cudaDeviceSynchronize", 3000, 5))) == [(0, 3005)]  # the host's calls are lost


def test_the_whole_trace_ends_where_the_program_does_not_where_the_profiler_does() -> None:
    profilers = row("Trace", "PyTorch Profiler (0)", -100, 900), row("overhead", "Buffer Flush", 500, 100)
    assert windows(build(op("aten::mm", 5, 10), *profilers)) == [(5, 15)]


def test_a_number_past_int64_is_no_step() -> None:
    assert steps(build(step(0, 10, 10**20), op("aten::mm", 1, 2))).names == ("whole trace",)


def test_the_thread_with_most_steps_is_the_one_that_runs_them() -> None:
    trace = build(annotation("ProfilerStep#0", 0, 500, tid=OTHER), *RUNS_AHEAD)
    assert steps(trace).names == ("ProfilerStep#7", "ProfilerStep#8")


def test_one_launch_of_a_graph_carries_all_its_kernels() -> None:
    trace = build(call("cudaGraphLaunch", 3, 1, corr=9), kernel("a", 10, 1, 9), kernel("b", 11, 1, 9), memset(12, 1, 9))
    assert launches(trace) == {"a": 3, "b": 3, "Memset (Device)": 3}


def test_of_two_calls_with_one_correlation_the_earlier_launched() -> None:
    trace = build(call("cuLaunchKernelEx", 4, 1, 9), call("cudaLaunchKernelExC", 3, 3, 9), kernel("a", 10, 1, 9))
    assert launches(trace) == {"a": 3}


@pytest.mark.parametrize("corr", [0, -1, 77])
def test_a_correlation_that_no_call_has_is_no_launch(corr: int) -> None:
    trace = build(call("cudaLaunchKernel", 3, 1, 0), call("cudaLaunchKernel", 5, 1, -1), kernel("a", 10, 1, corr))
    assert launches(trace) == {"a": -1}


def test_work_without_a_launch_is_from_before_the_trace_only_until_its_stream_has_a_launched_op() -> None:
    trace = build(
        launch(0, 1, 1),
        kernel("before", 5, 2),
        kernel("first", 10, 5, corr=1),
        kernel("after", 20, 3),
        kernel("stream without a launch", 2, 7, stream=8),
    )
    (coverage,) = table(trace, "coverage")
    assert coverage == {
        "num_gpu_events": 4,
        "unattributed_ns": 10_000,
        "before_window_ns": 2_000,
        "unrecorded_ns": 0,
        "replay_ns": 0,
        "uncaptured_ns": 0,
        "dropped_events": 0,
        "unread_counters": 0,
    }
