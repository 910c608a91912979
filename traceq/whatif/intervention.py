"""Intervention: what would be changed, as other weights of a job's edges, at least and at most."""

from __future__ import annotations

from abc import ABC, abstractmethod

from traceq.whatif.job_replay import JobReplay
from traceq.whatif.weights import Weights

__all__ = ["Intervention"]


class Intervention(ABC):
    """A change: `option` of the command, `words` to go on "... the step would take", `held` fixed by it."""

    held: str = ""

    @property
    @abstractmethod
    def option(self) -> str:
        """The option of `traceq whatif` that asks for it."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The change, as the beginning of a sentence."""

    @abstractmethod
    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        """Change the weights in place, by what shortens the step at least or at `most`. Raises UsageFault."""

    def held_in(self, replay: JobReplay) -> str:
        """Return what is held fixed in one job."""
        return self.held

    def ignored(self, replay: JobReplay) -> tuple[int, ...]:
        """Return the indices of ranks whose own end of a step does not count."""
        return ()
