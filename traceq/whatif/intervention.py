"""Intervention: what would be changed, as other weights of a job's edges, at least and at most."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from traceq.whatif.job_replay import JobReplay

__all__ = ["Intervention", "change_host"]

Ints = NDArray[np.int64]


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
    def apply(self, replay: JobReplay, weight: Ints, *, most: bool) -> None:
        """Change the weights in place, by what shortens the step at least or at `most`. Raises UsageFault."""

    def held_in(self, replay: JobReplay) -> str:
        """Return what is held fixed in one job."""
        return self.held

    def ignored(self, replay: JobReplay) -> tuple[int, ...]:
        """Return the indices of ranks whose own end of a step does not count."""
        return ()


def change_host(replay: JobReplay, weight: Ints, index: int, change: Ints) -> None:
    """Add to the host's time of a rank."""
    view, host = weight[replay.edges_of(index)], replay.parts[index].host
    view[host] = np.maximum(view[host] + change, 0)
