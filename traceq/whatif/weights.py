"""Weights of a job's edges that interventions change one after the other, and all together at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.intervals import Spans, sorted_unique, span_index
from traceq.whatif.job_replay import JobReplay
from traceq.whatif.rank_part import RankPart

__all__ = ["Weights"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Weights:
    """`edges` int64[E] ns of a replay, which interventions change in place, and by which parts of its time a host goes.

    Two that take half of the same time of a host leave a quarter of it.
    """

    def __init__(self, replay: JobReplay, edges: Ints) -> None:
        self.edges = edges.copy()
        self._replay = replay
        self._host: defaultdict[tuple[int, int], list[tuple[Spans, Floats]]] = defaultdict(list)

    def of_rank(self, index: int) -> Ints:
        """Return the weights of a rank's edges, by its index: a view."""
        return self.edges[self._replay.edges_of(index)]

    def scale_host(self, index: int, times: Sequence[Spans], factor: float | Floats) -> None:
        """Let each chain of threads of a rank take `factor` of its time in spans, given by chain.

        Time in which the host waits for others is none of its own.
        """
        for chain, parts in enumerate(times):
            if len(parts):
                self._host[index, chain].append((parts, np.broadcast_to(factor, len(parts))))

    def changed(self) -> Ints:
        """Return int64[E] ns: the weights with all changes."""
        for (index, chain), scaled in self._host.items():
            part, view = self._replay.parts[index], self.of_rank(index)
            of_chain = part.host[part.chain == chain]
            view[of_chain] = np.maximum(view[of_chain] + _change_ns(part, of_chain, scaled), 0)
        self._host.clear()
        return self.edges


def _change_ns(part: RankPart, edges: Ints, scaled: Sequence[tuple[Spans, Floats]]) -> Ints:
    """Return by how many ns some edges of the host change."""
    moments = sorted_unique(part.waits.ravel(), *(parts.ravel() for parts, _ in scaled))
    factor = np.where(span_index(part.waits, moments) >= 0, np.nan, 1.0)
    for parts, factors in scaled:
        factor *= np.r_[factors, 1.0][span_index(parts, moments)]
    rate = np.where(np.isnan(factor), 0.0, factor - 1.0)[:-1]
    origin = int(part.time[0])
    changed = np.concatenate([[0.0], np.cumsum(rate * np.diff(moments))])
    begin, end = (
        np.interp(part.time[of[edges]] - origin, moments - origin, changed) for of in (part.source, part.target)
    )
    rounded: Ints = np.rint(end - begin).astype(np.int64)
    return rounded
