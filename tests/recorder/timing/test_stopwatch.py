"""Times of a step and its phases by a device's clock, here with events whose times the test sets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="the stopwatch marks steps with torch's events")
pytest.importorskip("nvtx", reason="phases are nvtx ranges")

import torch

from traceq.recorder.spec.phases import Phases
from traceq.recorder.timing import stopwatch as module
from traceq.recorder.timing.stopwatch import NO_PEAK, Peak, Stopwatch

pytestmark = pytest.mark.torch
MEBIBYTES = 2**20


class Event:
    """An event that a device reaches after that many milliseconds."""

    def __init__(self, time_ms: float) -> None:
        self.time_ms = time_ms

    def elapsed_time(self, later: Event) -> float:
        return later.time_ms - self.time_ms


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Times, ms, at which the device reaches the next events; its peak memory is 7 bytes."""
    times_ms: list[float] = []
    monkeypatch.setattr(module, "_event", lambda device: Event(times_ms.pop(0)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(module, "read_peak", lambda device: Peak(7, 9))
    yield times_ms
    assert times_ms == [], "an event was not recorded"


def test_phases_have_the_time_between_their_events_and_add_up_over_a_step(device: list[float]) -> None:
    device += [0, 1, 3, 3, 4.5, 5, 6, 10]
    phases = Phases(("forward", "bwd", "check"))
    with Stopwatch(torch.device("cuda"), phases) as stopwatch:
        stopwatch.mark()
        with phases("forward"), phases("check"):
            pass
        with phases("bwd"):
            pass
        with phases("forward"):
            pass
        stopwatch.mark()
        (step,) = stopwatch.take()
    assert step.device_ns == 10_000_000
    assert step.device_phases == {"forward": 3_000_000, "bwd": 1_500_000}
    assert step.phases.keys() == step.device_phases.keys()
    assert step.peak == Peak(7, 9)


def test_of_phases_that_do_not_nest_one_event_ends_a_phase_and_begins_the_next(device: list[float]) -> None:
    device += [0, 1, 3, 6, 10]
    phases = Phases()
    with Stopwatch(torch.device("cuda"), phases) as stopwatch:
        stopwatch.mark()
        for name in ("forward", "backward", ""):
            phases.switch(name)
        stopwatch.mark()
        (step,) = stopwatch.take()
    assert step.device_phases == {"forward": 2_000_000, "backward": 3_000_000}


def test_a_profiled_switch_is_a_range_of_the_profiler() -> None:
    phases = Phases()
    phases.profiling = True
    with torch.profiler.profile() as profiler:
        for name in ("forward", "backward", ""):
            phases.switch(name)
    names = [event.name for event in profiler.events() or []]
    assert [name for name in names if name in ("forward", "backward")] == ["forward", "backward"]


def test_profiled_and_untimed_phases_record_no_event(device: list[float]) -> None:
    device += [0, 1]
    phases = Phases(("forward",))
    with Stopwatch(torch.device("cuda"), phases) as stopwatch:
        stopwatch.mark()
        phases.profiling = True
        with phases("forward"):
            pass
        stopwatch.mark(half_ended=False)
        (step,) = stopwatch.take()
    assert (step.device_phases, step.peak) == ({}, NO_PEAK)
    phases.profiling = False
    with phases("forward"):
        pass
    assert phases.events == []


def test_without_a_device_there_is_no_time_of_one_and_the_peak_is_that_of_the_process() -> None:
    phases = Phases(("forward",))
    with Stopwatch(torch.device("cpu"), phases) as stopwatch:
        stopwatch.mark()
        with phases("forward"):
            pass
        stopwatch.mark()
        (step,) = stopwatch.take()
    assert (step.device_ns, step.device_phases, list(step.phases)) == (0, {}, ["forward"])
    assert step.peak.allocated > MEBIBYTES


PEAKS = """
import torch
from traceq.recorder.timing.stopwatch import read_peak, reset_peak_memory

cpu = torch.device("cpu")
large = torch.ones(64 * 2**20 // 4)
before = read_peak(cpu).allocated
del large
reset_peak_memory(cpu)
print(before, read_peak(cpu).allocated)
"""


@pytest.mark.slow
def test_the_peak_of_a_process_begins_anew_where_the_system_can_forget() -> None:
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    if after == before:
        pytest.skip("this system forgets no peak")
    assert before - after > 32 * MEBIBYTES


def test_what_happens_before_a_step_is_resumed_belongs_to_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1_000, 100))
    monkeypatch.setattr(module, "perf_counter_ns", lambda: next(clock))
    monkeypatch.setattr(module, "thread_time_ns", lambda: 0)
    with Stopwatch(torch.device("cpu"), Phases()) as stopwatch:
        stopwatch.mark()  # at 0
        stopwatch.resume()  # at 100
        stopwatch.mark()  # at 200
        stopwatch.mark()  # at 300
        assert [step.wall_ns for step in stopwatch.take()] == [100, 100]
