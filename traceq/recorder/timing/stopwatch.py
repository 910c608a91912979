"""End times of steps on the host and on the device, taken without synchronizing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from time import perf_counter_ns, thread_time_ns

import torch

from traceq.errors import RecordingFailed
from traceq.recorder.spec.phases import Phases, Taken
from traceq.recorder.timing.gc_pauses import GcPauses, StepPauses
from traceq.recorder.timing.graph_capture import CAPTURED_STEP
from traceq.recorder.timing.peak_memory import NO_PEAK, Peak, read_peak
from traceq.runs.step_log import HalfPauses

__all__ = ["StepTime", "Stopwatch", "half_pauses", "mean_cpu_ns", "mean_ns"]


@dataclass(slots=True)  # a frozen one costs more to make
class StepTime:
    """Times of one step, from the end of the step before it.

    Without a device `device_ns` is 0 and `device_phases` is empty.
    """

    wall_ns: int
    cpu_ns: int
    device_ns: int
    peak: Peak
    phases: dict[str, int]
    device_phases: dict[str, int]
    pauses: StepPauses = field(default_factory=StepPauses)


_Mark = tuple[int, int, torch.cuda.Event | None, Peak | None, Taken, StepPauses]
"""The end of a step: wall and CPU time, ns, event, peak, phases and collections. A plain tuple costs least."""


class Stopwatch:
    """Marks of the ends of steps, and the times between them.

    In its `with` block, phases are timed by device events, too, and `collector` measures garbage collections.
    """

    __slots__ = ("_is_cuda", "_marks", "_phases", "_resumed", "collector", "device")

    def __init__(self, device: torch.device, phases: Phases) -> None:
        self.device = device
        self._is_cuda = device.type == "cuda"
        self._phases = phases
        self.collector = GcPauses()
        self._marks: list[_Mark] = []
        self._resumed: dict[int, tuple[int, int]] = {}  # where the step after a mark began later: wall and CPU time

    def __enter__(self) -> Stopwatch:
        self._phases.event = partial(_event, self.device) if self._is_cuda else None
        self.collector.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.collector.stop()
        self._phases.event = None

    def mark(self, *, half_ended: bool = True) -> None:
        """Mark the end of a step; the device's peak memory is read only where a half ends, as it takes tens of us.

        Raises RecordingFailed if a CUDA graph is being captured.
        """
        event: torch.cuda.Event | None = None
        peak: Peak | None = None
        if self._is_cuda:
            event = _event(self.device)
            if event is None:
                raise RecordingFailed(CAPTURED_STEP)
            peak = read_peak(self.device) if half_ended else NO_PEAK
        taken = perf_counter_ns(), thread_time_ns(), event, peak, self._phases.take(), self.collector.take()
        self._marks.append(taken)

    def resume(self) -> None:
        """Begin the next step now on the host: what happened since the last mark belongs to no step."""
        self.collector.take()
        cpu_ns = thread_time_ns()
        self._resumed[len(self._marks) - 1] = (perf_counter_ns(), cpu_ns)

    def take(self) -> list[StepTime]:
        """Return the times between the marks so far, oldest first, and clear them.

        Synchronizes with the device: call it only between blocks. The peak of a process, which only grows, is read here
        once for all of them.
        """
        marks, self._marks = self._marks, []
        resumed, self._resumed = self._resumed, {}
        if self._is_cuda:  # all of its streams: a phase may have run on another one than the last mark
            torch.cuda.synchronize(self.device)
        of_process = NO_PEAK if self._is_cuda else read_peak(self.device)
        return [
            _step_time(resumed.get(index, before[:2]), before[2], after, of_process)
            for index, (before, after) in enumerate(pairwise(marks))
        ]


def _event(device: torch.device) -> torch.cuda.Event | None:
    """Return an event recorded on the stream that is current on this device; None while a CUDA graph is captured.

    The current device may be another one, which is idle: its events are those of the host. An event of a capture has no
    time, and raises where it is read.
    """
    if torch.cuda.is_current_stream_capturing():
        return None
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _step_time(
    began: tuple[int, int], began_event: torch.cuda.Event | None, end: _Mark, peak_of_process: Peak
) -> StepTime:
    wall_ns, cpu_ns, event, peak, (phases, events), pauses = end
    device_phases: dict[str, int] = {}
    for phase in events:
        device_phases[phase.name] = device_phases.get(phase.name, 0) + _elapsed_ns(phase.began, phase.ended)
    return StepTime(
        wall_ns=wall_ns - began[0],
        cpu_ns=cpu_ns - began[1],
        device_ns=0 if began_event is None or event is None else _elapsed_ns(began_event, event),
        peak=peak_of_process if peak is None else peak,
        phases=phases,
        device_phases=device_phases,
        pauses=pauses,
    )


def _elapsed_ns(began: torch.cuda.Event, ended: torch.cuda.Event) -> int:
    milliseconds: float = began.elapsed_time(ended)
    return round(milliseconds * 1e6)


def mean_ns(steps: Sequence[StepTime]) -> int:
    """Return the mean time of steps, ns; on a device measured by events."""
    return sum(step.device_ns or step.wall_ns for step in steps) // len(steps)


def mean_cpu_ns(steps: Sequence[StepTime]) -> int:
    """Return the mean CPU time of the main thread in the steps, ns; 0 with a device."""
    return sum(step.cpu_ns for step in steps) // len(steps) if steps[0].device_ns == 0 else 0


def half_pauses(steps: Sequence[StepTime], counted: Sequence[int]) -> HalfPauses:
    """Return the garbage collections of the steps of a half, of which those with these numbers count."""
    kinds: dict[str, tuple[int, int, int]] = {}
    for number, step in enumerate(steps):
        for kind, (num, ns) in step.pauses.kinds.items():
            before = kinds.get(kind, (0, 0, 0))
            counted_ns = ns // len(counted) if number in counted else 0
            kinds[kind] = before[0] + num, before[1] + ns, before[2] + counted_ns
    return HalfPauses(len(steps), sum(step.pauses.allocated for step in steps), kinds)
