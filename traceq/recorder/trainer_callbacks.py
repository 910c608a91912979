"""Steps of a loop that a trainer runs, recorded from the trainer's callbacks."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack

from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.recorder.spec.phases import Phases

__all__ = ["Stepper"]


class Stepper:
    """Callbacks that end steps and begin phases, one after the other.

    The first step begins with the stepper. A step begins in the phase `dataload_wait`, until the loop sets another.
    When the recording is complete, the callbacks have no further effect.
    """

    __slots__ = ("_open", "_phases", "_steps")

    def __init__(self, steps: Generator[str, None, None], phases: Phases) -> None:
        self._steps = steps
        self._phases = phases
        self._open = ExitStack()
        self.end_step()

    def set_phase(self, phase: str) -> None:
        """End the current phase and begin this one."""
        self._open.close()
        self._open.enter_context(self._phases(phase))

    def end_step(self) -> None:
        """End the current step and begin the next one."""
        self._open.close()
        next(self._steps, None)
        self.set_phase(DATALOAD_WAIT)

    def close(self) -> None:
        """End the recording: the step that runs has no end and does not count."""
        self._open.close()
        self._steps.close()
