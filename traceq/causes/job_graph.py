"""Neutral graph of a job: moments that wait for others, and meetings, in which the last to come decides.

It knows nothing of traces. A counterfactual is another weight of some edges; its times are longest paths.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.causes.longest_path import first_edges, longest_paths, paths_to, topological_order
from traceq.frozen import frozen
from traceq.grouping import Numbers


@frozen(eq=False)
class JobGraph:
    """N moments and E edges between them: `source`, `target` [E], a moment is not before any of its sources.

    Of these, `order` int64[E] are sorted by the target's number, `first` int32[N + 1] into them: those into each;
    `number` int64[N]: the moments' numbers, by which every edge runs forwards; `sources` int32[E]: those of the sources
    of `order`. Without `order` and `number` edges and moments are in these orders already.
    """

    source: Numbers
    target: Numbers
    order: NDArray[np.int64] | None
    first: NDArray[np.int32]
    number: NDArray[np.int64] | None
    sources: NDArray[np.int32]

    def times(self, weight: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[N]: when each moment is, given the `weight` int64[E] of edges; without a source it is at 0."""
        time, _ = self._paths(weight)
        return time if self.number is None else time[self.number]

    def edges_on_paths(self, weight: NDArray[np.int64], moments: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return bool[E]: the edges that decide when some moments are."""
        time, choice = self._paths(weight)
        since = np.full(len(moments), np.iinfo(np.int64).min)
        numbers = moments if self.number is None else self.number[moments]
        path = paths_to(numbers, since, choice, self.sources, time)
        edges = choice[(path >= 0) & (choice >= 0)]
        on_path = np.zeros(len(self.source), np.bool_)
        on_path[edges if self.order is None else self.order[edges]] = True
        return on_path

    def _paths(self, weight: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return (when each moment is, by number; the edge into it that decides it, in `order`, -1 without any)."""
        return longest_paths(self.first, self.sources, weight if self.order is None else weight[self.order])


def job_graph(
    num: int,
    source: Numbers,
    target: Numbers,
    runs: NDArray[np.int64],
    meeting: NDArray[np.int64],
) -> JobGraph:
    """Return the graph of `num` moments, those of the meetings after them, and edges, those into meetings after them.

    The edges `runs` int64[P] belong to the meetings `meeting` int64[P], numbered from 0: none of them begins before the
    sources of all of its meeting. Their weights count from there. Raises ValueError if moments wait for each other.
    """
    if not len(runs) and (source < target).all() and (target[:-1] <= target[1:]).all():  # of one rank, it is in order
        return JobGraph(source, target, None, first_edges(target, num), None, source.astype(np.int32, copy=False))
    num_meetings = int(meeting.max(initial=-1)) + 1
    comes = source[runs]
    source = source.copy()
    source[runs] = num + meeting
    source, target = np.r_[source, comes], np.r_[target, num + meeting]
    number = np.arange(num + num_meetings)
    if not (source < target).all():  # else they run forwards already
        number[topological_order(source, target, len(number))] = number.copy()
    order = np.argsort(number[target], kind="stable")
    first, sources = first_edges(number[target], len(number)), number[source[order]]
    return JobGraph(source, target, order, first, number, sources.astype(np.int32))
