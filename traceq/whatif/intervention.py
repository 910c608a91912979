"""Intervention: what would be changed, as other weights of a job's edges, at least and at most."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence

from traceq.errors import UsageFault
from traceq.whatif.job_replay import JobReplay
from traceq.whatif.rank_part import RankPart
from traceq.whatif.weights import RankWeights, Weights

__all__ = ["Intervention", "RankIntervention"]


class Intervention(ABC):
    """A change: `option` of the command, `words` to go on "... the step would take", `held` fixed by it.

    One that `speeds_device` may let it catch up with a queue, which at least is no saving of steps to come.
    """

    held: str = ""
    speeds_device: bool = False

    def held_in(self, replay: JobReplay) -> str:
        """Return what is held fixed in a job."""
        return self.held

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

    def ignored(self, replay: JobReplay) -> tuple[int, ...]:
        """Return the indices of ranks whose own end of a step does not count."""
        return ()


class RankIntervention(Intervention):
    """A change of every rank by itself, whichever others there are."""

    @abstractmethod
    def is_in(self, part: RankPart) -> bool:
        """Return whether there is anything to change in a rank."""

    @abstractmethod
    def nothing(self, nearest: Sequence[str]) -> str:
        """Return that no rank has anything to change, and what is there instead."""

    def nearest(self, part: RankPart) -> tuple[str, ...]:
        """Return what a rank has instead of what is to be changed, as names."""
        return ()

    @abstractmethod
    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        """Change the weights of a rank in place, by what shortens the step at least or at `most`."""

    def allocations(self, part: RankPart) -> Counter[str]:
        """Return how often each call of the allocator is among what is removed."""
        return Counter()

    def held_with(self, allocations: Mapping[str, int]) -> str:
        """Return what is held fixed where these allocations are among what is removed."""
        return self.held

    def held_in(self, replay: JobReplay) -> str:
        of_ranks = [each.allocations(self.option) for each in replay.contracted]
        of_ranks += [self.allocations(part) for part in replay.parts]
        return self.held_with(sum(of_ranks, Counter()))

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        if not any(map(self.is_in, replay.parts)):
            names = dict.fromkeys(name for part in replay.parts for name in self.nearest(part))
            raise UsageFault(self.nothing(list(names)))
        for part, of_rank in zip(replay.parts, weights.ranks, strict=True):
            self.change(part, of_rank, most=most)
