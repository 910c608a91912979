"""Phases of a loop that do not nest: one that begins inside another interrupts it.

An optimizer may run the forward and the backward in its closure; each gets its time, and the optimizer the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from traceq.recorder.jobs.step_tracker import StepTracker
from traceq.recorder.process.progress_counters import ProgressCounters
from traceq.recorder.spec.phases import Phases

__all__ = ["PhaseStack"]


class PhaseStack:
    """Phases that have begun, of which the last is open. Without `phases` it only keeps their names.

    A phase may begin with an event of the loop; `begin_step` is called before it if that event begins a step. Inside a
    phase of the same event it is none: a loader or a model that contains another.
    """

    __slots__ = ("_begin_step", "_open", "_tracker", "counters", "phases")

    def __init__(self, tracker: StepTracker, begin_step: Callable[[], None]) -> None:
        self.phases: Phases | None = None
        self.counters = ProgressCounters("", 0)
        self._tracker = tracker
        self._begin_step = begin_step
        self._open: list[tuple[str, str]] = []  # names and events

    def begin(self, name: str, event: str = "") -> int:
        """Interrupt the current phase by this one; return the depth at which `end` ends it."""
        depth = len(self._open)
        self.counters.count_phase()
        if event and not (depth and self._is_open(event)) and self._tracker.add(event):
            if self.phases is not None:
                self.phases.switch("")
            self._begin_step()  # what it does belongs to no phase
        self._open.append((name, event))
        if self.phases is not None:
            self.phases.switch(name)
        return depth

    def end(self, depth: int) -> None:
        """End the phase that began at this depth, and all inside it; the one around it continues."""
        if depth < len(self._open):
            del self._open[depth:]
            if self.phases is not None:
                self.phases.switch(self._open[-1][0] if depth else "")

    def _is_open(self, event: str) -> bool:
        return any(event == each for _, each in self._open)
