"""Weights of edges, of a rank or a job, that interventions change one after the other, the host's at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.intervals import Spans, sorted_unique, span_index
from traceq.whatif.job_replay import JobReplay
from traceq.whatif.rank_part import RankPart

__all__ = ["RankWeights", "Weights"]

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
