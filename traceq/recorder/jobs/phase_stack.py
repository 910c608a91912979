"""Phases of a loop that do not nest: one that begins inside another interrupts it.

An optimizer may run the forward and the backward in its closure; each gets its time, and the optimizer the rest. What
autograd runs in a backward is part of it: the forward that an adjoint method or a reversible model repeats there.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from traceq.recorder.jobs.step_pattern import FORWARDS
from traceq.recorder.jobs.step_tracker import StepTracker
from traceq.recorder.process.progress_counters import PHASES_ENTERED, ProgressCounters
from traceq.recorder.spec.phases import Phases

__all__ = ["PhaseStack"]

_BACKWARD, _COMPILING = "backward", "compiling"
_OF_BACKWARD = ("forward", "no_grad_forward", "autograd_grad")
"""Phases that are none inside a backward."""


class PhaseStack:
    """Phases that have begun, of which the last is open. Until `time` is called it only keeps their names.

    A phase may begin with an event of the loop; `begin_step` is called before it if that event begins a step. Inside a
    phase of the same event it is none: a loader or a model that contains another.
    """

    __slots__ = ("_begin_step", "_compiles_since_ns", "_open", "_phases", "_tracker", "compiled_ns", "counters")

    def __init__(self, tracker: StepTracker, begin_step: Callable[[], None]) -> None:
        self.counters = ProgressCounters("", 0)
        self.compiled_ns = 0  # time in the phase of torch's compiling so far
        self._compiles_since_ns = 0
        self._tracker = tracker
        self._begin_step = begin_step
        self._phases: Phases | None = None
        self._open: list[tuple[str, str]] = []  # names and events

    def time(self, phases: Phases | None) -> None:
        """Time these phases from here on, or none."""
        self._phases = phases

    def begin(self, name: str, event: str = "") -> int:
        """Interrupt the current phase by this one; return the depth at which `end` ends it."""
        depth = len(self._open)
        self.counters.cells[PHASES_ENTERED] += 1
        if depth and name in _OF_BACKWARD and self._is_backward():
            return depth
        if event and not (depth and self._is_open(event)) and self._tracker.add(event):
            if depth and self._phases is not None:
                self._phases.switch("")
            self._begin_step()  # what it does belongs to no phase
        if name == _COMPILING:
            self._compiles_since_ns = perf_counter_ns()
        self._open.append((name, event))
        if self._phases is not None:
            self._phases.switch(name)
        return depth

    def end(self, depth: int) -> None:
        """End the phase that began at this depth, and all inside it; the one around it continues."""
        if depth < len(self._open):
            if self._open[depth][0] == _COMPILING:
                self.compiled_ns += perf_counter_ns() - self._compiles_since_ns
            del self._open[depth:]
            if self._phases is not None:
                self._phases.switch(self._open[-1][0] if depth else "")

    def is_inside_model(self) -> bool:
        """Return whether a forward with an event of its own has begun, or a backward."""
        return self._is_backward() or any(event in FORWARDS for _, event in self._open)

    def _is_backward(self) -> bool:
        return any(name == _BACKWARD for name, _ in self._open)

    def _is_open(self, event: str) -> bool:
        return any(event == each for _, each in self._open)
