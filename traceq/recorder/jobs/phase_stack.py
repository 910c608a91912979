"""Phases of a loop that do not nest: one that begins inside another interrupts it.

An optimizer may run the forward and the backward in its closure; each gets its time, and the optimizer the rest. What
autograd runs in a backward is part of it: the forward that an adjoint method or a reversible model repeats there.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns

from traceq.recorder.jobs.step_pattern import FORWARDS
from traceq.recorder.jobs.step_tracker import StepTracker
from traceq.recorder.process.progress_counters import PHASES_ENTERED, ProgressCounters
from traceq.recorder.spec.phases import Phases

_BACKWARD = "backward"
Begin = Callable[..., int | None]
"""Begins a phase, whatever it is called with, and returns the depth at which `PhaseStack.end` ends it.

None on another thread than the watched one, and inside a backward where the phase is part of it.
"""
_OF_BACKWARD = ("forward", "no_grad_forward", "autograd_grad")
"""Phases that are none inside a backward."""


class PhaseStack:
    """Phases of `thread` that have begun, of which the last is open; they are timed in `phases`.

    That is the loop's thread while it is watched: from its first backward until the recording has ended.

    A phase may begin with an event of the loop; `begin_step` is called before it if that event begins a step. Inside a
    phase of the same event it is none: a loader or a model that contains another.
    """

    __slots__ = ("_begin_step", "_is_shown", "_open", "_since_ns", "_tracker", "counters", "phases", "thread")

    def __init__(self, tracker: StepTracker, begin_step: Callable[[], None]) -> None:
        self.thread: int | None = None
        self.counters = ProgressCounters()
        self.phases = Phases()  # of steps that are not recorded
        self._is_shown = False
        self._tracker = tracker
        self._begin_step = begin_step
        self._open: list[tuple[str, str]] = []  # names and events
        self._since_ns = 0  # when the last one began, or went on

    def phase(self, name: str, event: str = "") -> Begin:
        """Return what begins this phase, and interrupts the current one by it."""
        phase, open_phases, is_of_backward = (name, event), self._open, name in _OF_BACKWARD

        def begin(*_: object) -> int | None:
            if self.thread != get_ident():
                return None
            depth = len(open_phases)
            self.counters.cells[PHASES_ENTERED] += 1
            if depth:
                if is_of_backward and self._is_backward():
                    return None
                self._interrupt()
            if event and not (depth and self._is_open(event)) and self._tracker.add(event):
                self._begin_step()  # what it does belongs to no phase
                self._is_shown = self.phases.is_shown  # changes nowhere else
            open_phases.append(phase)
            self._since_ns = perf_counter_ns()
            if self._is_shown:
                self.phases.switch(name)
            return depth

        return begin

    def end(self, depth: int) -> None:
        """End the phase that began at this depth, and all inside it; the one around it continues."""
        open_phases = self._open
        if depth < len(open_phases):
            now_ns = perf_counter_ns()
            self.phases.elapsed_ns[open_phases[-1][0]] += now_ns - self._since_ns
            self._since_ns = now_ns
            del open_phases[depth:]
            if self._is_shown:
                self.phases.switch(open_phases[-1][0] if depth else "")

    def _interrupt(self) -> None:
        self.phases.elapsed_ns[self._open[-1][0]] += perf_counter_ns() - self._since_ns
        if self._is_shown:
            self.phases.switch("")

    def is_inside_model(self) -> bool:
        """Return whether a forward with an event of its own has begun, or a backward."""
        return self._is_backward() or any(event in FORWARDS for _, event in self._open)

    def _is_backward(self) -> bool:
        return any(name == _BACKWARD for name, _ in self._open)

    def _is_open(self, event: str) -> bool:
        return any(event == each for _, each in self._open)
