"""When each step ended, on the host and on the device, without waiting for either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter_ns, thread_time_ns

import torch

from traceq.recorder.peak import peak_bytes
from traceq.recorder.phases import Phases

__all__ = ["StepTime", "Stopwatch", "counted_cpu_ns", "counted_ns"]


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step, from the end of the step before it. `device_ns` is 0 without a device."""

    wall_ns: int
    cpu_ns: int
    device_ns: int
    peak_bytes: int
    phases: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Mark:
    wall_ns: int
    cpu_ns: int
    event: torch.cuda.Event | None
    peak_bytes: int
    phases: dict[str, int]


class Stopwatch:
    """Marks ends of steps; hands out the times between them once a group is over."""

    __slots__ = ("_marks", "_phases", "device")

    def __init__(self, device: torch.device, phases: Phases) -> None:
        self.device = device
        self._phases = phases
        self._marks: list[_Mark] = []

    def mark(self, *, half_ended: bool = True) -> None:
        """A step ends here. Peak memory is read where a half ends: it costs the host tens of us on CUDA."""
        event = None
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
        peak = peak_bytes(self.device) if half_ended else 0
        self._marks.append(_Mark(perf_counter_ns(), thread_time_ns(), event, peak, self._phases.take()))

    def take(self) -> list[StepTime]:
        """Times between the marks so far, oldest first, and forget them. Waits for the device: between groups only."""
        marks, self._marks = self._marks, []
        if marks and marks[-1].event is not None:
            marks[-1].event.synchronize()
        return [_between(before, after) for before, after in pairwise(marks)]


def _between(before: _Mark, after: _Mark) -> StepTime:
    device_ns = 0
    if before.event is not None and after.event is not None:
        device_ns = round(before.event.elapsed_time(after.event) * 1e6)
    return StepTime(
        wall_ns=after.wall_ns - before.wall_ns,
        cpu_ns=after.cpu_ns - before.cpu_ns,
        device_ns=device_ns,
        peak_bytes=after.peak_bytes,
        phases=after.phases,
    )


def counted_ns(half: Sequence[StepTime]) -> int:
    """Time of one step of a half, ns. With a device the first step settles and is not counted, and events decide."""
    if half[0].device_ns == 0:
        return sum(step.wall_ns for step in half) // len(half)
    counted = half[1:] or half
    return sum(step.device_ns for step in counted) // len(counted)


def counted_cpu_ns(half: Sequence[StepTime]) -> int:
    """CPU time of the main thread in one step of a half, ns; 0 with a device, whose time is not the host's."""
    return sum(step.cpu_ns for step in half) // len(half) if half[0].device_ns == 0 else 0
