"""End times of steps on the host and on the device, taken without synchronizing them, and what is read beside them.

That is pauses of the garbage collector, the peak of memory, and whether a CUDA graph is being captured.
"""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from types import CodeType, FrameType
from typing import Any

import torch

from traceq.errors import RecordingFailed
from traceq.recorder.spec.phases import PhaseEvents, Phases
from traceq.recorder.tracing.line_marks import frames_from, is_user_code
from traceq.runs.step_log import HalfPauses, pause_kind

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak bytes of tensors and of the caching allocator; for a process, its resident memory and 0."""

    allocated: int
    reserved: int


NO_PEAK = Peak(0, 0)

CAPTURED_STEP = (
    "the job captures its step in a CUDA graph, and a replay shows no forward, backward or optimizer: use "
    "traceq.record in the loop"
)

_CALL_BYTES = 40
"""Bytecode before a call in which the function is loaded that it calls: of gc.collect(2) 30 bytes on Python 3.11."""
_COLLECT = "collect"


@dataclass(slots=True)
class StepPauses:
    """Collections of one step: number and ns by kind; `allocated`: objects that the collector counted, less freed ones.

    Of a step at whose end the collector is disabled `allocated` is 0: no automatic collection is due to it.
    """

    kinds: dict[str, tuple[int, int]] = field(default_factory=dict)
    allocated: int = 0

    @classmethod
    def between(cls, began: _PausesSoFar, ended: _PausesSoFar) -> StepPauses:
        """Return the collections between two moments."""
        names, totals, num_counted, is_enabled = ended
        before = [*began[1], *[0] * len(totals)]  # a kind that is new had none
        passed = [total - each for total, each in zip(totals, before, strict=False)]
        kinds = {name: (num, ns) for name, num, ns in zip(names, passed[::2], passed[1::2], strict=False) if num}
        return cls(kinds, num_counted - began[2] if is_enabled else 0)


_PausesSoFar = tuple[list[str], "array[int]", int, bool]
"""Collections up to a moment: kinds, number and ns of each in turn, objects allocated, whether they are enabled."""


class GcPauses:
    """Measures the collections of the whole process between `start` and `stop`, whichever thread they run on.

    They hold the interpreter's lock, so every thread that runs Python waits. The collector itself stays as it is, and
    so does the job's memory: what is kept are numbers in one place, no objects amid those that the job has just made.
    `collected_ns`: how long all collections took.
    """

    __slots__ = ("_began_ns", "_kind", "_names", "_num_counted", "_totals", "collected_ns")

    def __init__(self) -> None:
        self.collected_ns = 0
        self._names = [pause_kind(generation) for generation in range(3)]
        self._totals = array("q", bytes(16 * len(self._names)))  # number and ns of each kind in turn
        self._num_counted = 0  # objects until the last collection, from which the collector counts anew
        self._began_ns = 0
        self._kind = -1

    def start(self) -> None:
        """Measure the collections from now on."""
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Measure no more collections."""
        if self._on_collection in gc.callbacks:  # the job may have removed it
            gc.callbacks.remove(self._on_collection)

    def so_far(self) -> _PausesSoFar:
        """Return the collections so far."""
        return self._names, self._totals[:], self._num_counted + gc.get_count()[0], gc.isenabled()

    def _on_collection(self, event: str, info: dict[str, Any]) -> None:
        if event == "start":
            caller, count = sys._getframe().f_back, gc.get_count()[0]
            self._kind = self._explicit(caller, info) if _is_explicit(caller, count) else info["generation"]
            self._num_counted += count
            self._began_ns = perf_counter_ns()
        elif self._kind >= 0:  # else it had begun before the start
            ns = perf_counter_ns() - self._began_ns
            self._totals[2 * self._kind] += 1
            self._totals[2 * self._kind + 1] += ns
            self.collected_ns += ns
            self._kind = -1

    def _explicit(self, caller: FrameType | None, info: dict[str, Any]) -> int:
        """Return the number of the kind of a collection that a line asks for."""
        kind = pause_kind(info["generation"], _user_line(caller))
        if kind not in self._names:
            self._totals.extend((0, 0))  # first, since a thread may read both
            self._names.append(kind)
        return self._names.index(kind)


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


_Began = tuple[int, int, _PausesSoFar]
"""Wall and CPU time, ns, and collections so far."""
_DeviceMark = tuple[torch.cuda.Event, int, Peak]
"""The end of a step on the device: its event, the number of events of phases so far, and the peak."""
_Mark = tuple[_Began, dict[str, int], _DeviceMark | None]
"""The end of a step, phases so far, and its end on the device. A plain tuple costs least."""


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
        self._resumed: dict[int, _Began] = {}  # where the step after a mark began later

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
        on_device = self._mark_device(half_ended=half_ended) if self._is_cuda else None
        now = perf_counter_ns(), thread_time_ns(), self.collector.so_far()
        self._marks.append((now, self._phases.elapsed_ns.copy(), on_device))

    def _mark_device(self, *, half_ended: bool) -> _DeviceMark:
        event = _event(self.device)
        if event is None:
            raise RecordingFailed(CAPTURED_STEP)
        return event, len(self._phases.events), read_peak(self.device) if half_ended else NO_PEAK

    def resume(self) -> None:
        """Begin the next step now on the host: what happened since the last mark belongs to no step."""
        pauses, cpu_ns = self.collector.so_far(), thread_time_ns()
        self._resumed[len(self._marks) - 1] = perf_counter_ns(), cpu_ns, pauses

    def take(self) -> list[StepTime]:
        """Return the times between the marks so far, oldest first, and clear them.

        Synchronizes with the device: call it only between blocks. The peak of a process, which only grows, is read here
        once for all of them.
        """
        marks, self._marks = self._marks, []
        resumed, self._resumed = self._resumed, {}
        events = self._phases.events.copy()
        self._phases.events.clear()
        if self._is_cuda:  # all of its streams: a phase may have run on another one than the last mark
            torch.cuda.synchronize(self.device)
        of_process = NO_PEAK if self._is_cuda else read_peak(self.device)
        return [
            _step_time(resumed.get(index, before[0]), before, after, events, of_process)
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
    began: _Began, before: _Mark, end: _Mark, events: Sequence[PhaseEvents], peak_of_process: Peak
) -> StepTime:
    _, before_ns, began_on_device = before
    (wall_ns, cpu_ns, pauses), elapsed_ns, ended_on_device = end
    step = StepTime(
        wall_ns=wall_ns - began[0],
        cpu_ns=cpu_ns - began[1],
        device_ns=0,
        peak=peak_of_process,
        phases={name: spent for name, ns in elapsed_ns.items() if (spent := ns - before_ns[name])},
        device_phases={},
        pauses=StepPauses.between(began[2], pauses),
    )
    if began_on_device is not None and ended_on_device is not None:
        (began_event, first, _), (event, last, step.peak) = began_on_device, ended_on_device
        step.device_ns = _elapsed_ns(began_event, event)
        for phase in events[first:last]:
            phase_ns = _elapsed_ns(phase.began, phase.ended)
            step.device_phases[phase.name] = step.device_phases.get(phase.name, 0) + phase_ns
    return step


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


def _is_explicit(caller: FrameType | None, count: int) -> bool:
    """Return whether the program asks for the collection that begins, rather than the number of its objects.

    An automatic one begins when the count exceeds its threshold. Since Python 3.12 it begins a little later, when
    objects may have been freed, hence the half. Of a count above that the call that runs decides.
    """
    if not gc.isenabled() or 2 * count < gc.get_threshold()[0]:
        return True
    return caller is not None and _COLLECT in caller.f_code.co_names and _calls_collect(caller.f_code, caller.f_lasti)


@lru_cache(maxsize=64)
def _calls_collect(code: CodeType, offset: int) -> bool:
    """Return whether the instruction at this offset is a call of something named `collect`."""
    import dis  # for such collections alone

    before = [each for each in dis.get_instructions(code) if offset - _CALL_BYTES <= each.offset <= offset]
    loaded = [each.argval for each in before if each.opname.startswith("LOAD")]
    return before[-1].opname.startswith("CALL") and _COLLECT in loaded[-3:]


def _user_line(frame: FrameType | None) -> str:
    """Return `file.py:10`, the innermost line of user code that runs; of the innermost frame where there is none."""
    line = next((each for each in frames_from(frame) if is_user_code(each.f_code.co_filename)), frame)
    return f"{Path(line.f_code.co_filename).name}:{line.f_lineno}" if line else "?"


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured on this thread's stream: nothing may wait for the device."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]


def read_peak(device: torch.device) -> Peak:
    """Return the peak of the CUDA device since the last call, else of the process since `reset_peak_memory`.

    Of a device NO_PEAK where the allocator, one that is plugged in, keeps no account.
    """
    if device.type == "cuda":
        try:
            stats = torch.cuda.memory_stats_as_nested_dict(device)  # at once: flattened for each peak it takes 0.1 ms
            torch.cuda.reset_peak_memory_stats(device)
        except RuntimeError:
            return NO_PEAK
        return Peak(*(stats[key]["all"]["peak"] for key in ("allocated_bytes", "reserved_bytes")))
    # of this thread, but for the memory, which is the process's: for the times of all threads the kernel visits each
    who = getattr(resource, "RUSAGE_THREAD", getattr(resource, "RUSAGE_SELF", 0))
    kilobytes = resource.getrusage(who).ru_maxrss if resource is not None else 0
    return Peak(kilobytes if sys.platform == "darwin" else kilobytes * 1024, 0)


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak of the device or, only on Linux, of the process."""
    if device.type == "cuda":
        with suppress(RuntimeError):  # see `read_peak`
            torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def memory_in_use(device: torch.device) -> int:
    """Return the bytes of tensors on the CUDA device or, without one, of the process, whose peak begins anew."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    reset_peak_memory(device)
    return read_peak(device).allocated
