"""What an intervention is, and the weights of edges that interventions change one after the other, the host's last."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.errors import UsageFault
from traceq.intervals import Spans, sorted_unique, span_index
from traceq.whatif.job_replay import JobReplay
from traceq.whatif.rank_part import RankPart
from traceq.whatif.sentences import REFUSALS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class RankWeights:
    """`edges` int64[E] ns of one rank, which interventions change in place, and by which parts of its time it goes.

    Two that take half of the same time of a host leave a quarter of it.
    """

    def __init__(self, part: RankPart, edges: Ints) -> None:
        self.edges = edges
        self._part = part
        self._host: defaultdict[int, list[tuple[Spans, Floats]]] = defaultdict(list)

    def scale_host(self, times: Sequence[Spans], factor: float | Floats) -> None:
        """Let each chain of threads take `factor` of its time in spans, given by chain.

        Time in which the host waits for others is none of its own.
        """
        for chain, parts in enumerate(times):
            if len(parts):
                self._host[chain].append((parts, np.broadcast_to(factor, len(parts))))

    def settle(self) -> None:
        """Change the edges of the host by what was asked for."""
        for chain, scaled in self._host.items():
            of_chain = self._part.host[self._part.chain == chain]
            changed = self.edges[of_chain] + _change_ns(self._part, of_chain, scaled)
            self.edges[of_chain] = np.maximum(changed, 0)
        self._host.clear()


class Weights:
    """`edges` int64[E] ns of a job, which interventions change in place; `ranks`: those of each rank, views of them."""

    def __init__(self, replay: JobReplay, edges: Ints) -> None:
        self.edges = edges.copy()
        self.ranks = tuple(
            RankWeights(part, self.edges[replay.edges_of(index)]) for index, part in enumerate(replay.parts)
        )

    def changed(self) -> Ints:
        """Return int64[E] ns: the weights with all changes."""
        for of_rank in self.ranks:
            of_rank.settle()
        return self.edges


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
    """A change of every rank by itself, whichever others there are; `refusal`: what is said where there is nothing."""

    refusal: str = ""

    @abstractmethod
    def is_in(self, part: RankPart) -> bool:
        """Return whether there is anything to change in a rank."""

    def nothing(self, nearest: Sequence[str]) -> str:
        """Return that no rank has anything to change, and what is there instead."""
        return REFUSALS[self.refusal].format(option=self.option)

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


def _change_ns(part: RankPart, edges: Ints, scaled: Sequence[tuple[Spans, Floats]]) -> Ints:
    """Return by how many ns some edges of the host change."""
    origin = int(part.time[0])
    moments, changed = _changed_by(part, scaled, origin)
    begin, end = (np.interp(part.time[of[edges]] - origin, moments, changed) for of in (part.source, part.target))
    end -= begin
    return np.rint(end).astype(np.int64)


def _changed_by(part: RankPart, scaled: Sequence[tuple[Spans, Floats]], origin: int) -> tuple[Ints, Floats]:
    """Return (moments, ns since `origin`; by how many ns the host's time up to each of them changes)."""
    moments = sorted_unique(part.waits.ravel(), *(parts.ravel() for parts, _ in scaled))
    factor = np.where(span_index(part.waits, moments) >= 0, np.nan, 1.0)
    for parts, factors in scaled:
        factor *= np.r_[factors, 1.0][span_index(parts, moments)]
    rate = np.where(np.isnan(factor), 0.0, factor - 1.0)[:-1]
    return moments - origin, np.concatenate([[0.0], np.cumsum(rate * np.diff(moments))])
