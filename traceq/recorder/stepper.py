"""Steps that somebody else's loop runs: what a trainer's callbacks tell of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from traceq.recorder.spec.phases import Phases

__all__ = ["FETCH", "Stepper"]

FETCH = "dataload_wait"
"""The phase in which a loop fetches its batch."""


class Stepper:
    """Ends steps and turns to phases, one after the other, for a loop that is told of by callbacks.

    The first step begins with the stepper. What comes behind the end of a step is the phase `dataload_wait` of the
    next, until the loop turns to another. When the recording is done the loop goes on.
    """

    __slots__ = ("_open", "_phases", "_steps")

    def __init__(self, steps: Iterator[str], phases: Phases) -> None:
        self._steps = steps
        self._phases = phases
        self._open = ExitStack()
        self.end_step()

    def set_phase(self, phase: str) -> None:
        """The phase before it ends here, and this one begins."""
        self._open.close()
        self._open.enter_context(self._phases(phase))

    def end_step(self) -> None:
        """The step ends here, and the next one begins."""
        self._open.close()
        next(self._steps, None)
        self.set_phase(FETCH)

    def close(self) -> None:
        """No further step: the one under way, which has no end, does not count."""
        self._open.close()
