"""Steps of two recordings on one common graph, and how much of every edge's change reaches them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from traceq.causes.common_graph import CommonGraph, RankClock, common_graph
from traceq.causes.holds import launch_queue_length
from traceq.causes.host_line import HostLine, host_lines, without_keys
from traceq.causes.integral import path_shares
from traceq.causes.meetings import job_clocks, meetings
from traceq.causes.rank_graph import rank_graph
from traceq.causes.weights import Weights, edge_weights, idle_device_latency, usual_times
from traceq.causes.windows import opens_alike
from traceq.facts.ranks.job import Job
from traceq.frozen import frozen
from traceq.model import Trace

__all__ = ["CommonSteps", "common_steps"]


@frozen(eq=False)
class CommonSteps:
    """Steps of A and B on one common graph.

    `a`, `b`: the host lines of the ranks in the graph, `explained` the index of the rank whose steps these are.
    `share` float64[E] of each edge's change in the sum of all paired steps. `opens_alike`: where a counted step follows
    unrecorded work, it does on both sides, and begins with the same work. `is_swapped`: the sides were exchanged to
    make the result independent of their order; A of all else is the caller's B.
    """

    a: tuple[HostLine, ...]
    b: tuple[HostLine, ...]
    explained: int
    graph: CommonGraph
    weights: Weights
    share: NDArray[np.float64]
    opens_alike: bool
    is_swapped: bool

    @property
    def matched_pct(self) -> float:
        """Percent of the anchors of both host lines that are on the other side as well."""
        num_a, num_b, num_pairs = self.graph.num_anchors
        return 200 * num_pairs / (num_a + num_b)


def common_steps(a: Sequence[Trace], b: Sequence[Trace], explained: int = 0) -> CommonSteps:
    """Return the steps of one rank of two recordings: `a` and `b` hold the same ranks in the same order.

    Where their clocks can be compared, all ranks are in the graph, joined by the collectives in which they wait for
    each other; else only the one with the index `explained`.
    """
    is_swapped = _digest(b[explained]) < _digest(a[explained])
    if is_swapped:
        a, b = b, a
    compared = job_clocks(a, b) if len(a) > 1 else None
    if compared is None:
        a, b, explained = (a[explained],), (b[explained],), 0
    try:
        return _on_one_graph(a, b, explained, compared, is_swapped=is_swapped)
    except ValueError:  # collectives that run in another order on another rank were taken for the same
        return _on_one_graph((a[explained],), (b[explained],), 0, None, is_swapped=is_swapped)


def _on_one_graph(
    a: Sequence[Trace],
    b: Sequence[Trace],
    explained: int,
    compared: tuple[tuple[Job, Job], NDArray[np.int64]] | None,
    *,
    is_swapped: bool,
) -> CommonSteps:
    """Return the steps on the graph of these ranks. Raises ValueError if the graph has a circle."""
    queue_length = min(filter(None, map(launch_queue_length, (*a, *b))), default=0)
    lines = [host_lines(of_a, of_b, queue_length) for of_a, of_b in zip(a, b, strict=True)]
    ranks = [rank_graph(*of_rank) for of_rank in lines]
    met, clocks = meetings(ranks, *compared) if compared else (None, [RankClock()])
    graph = common_graph(ranks, clocks, explained, queue_length, met)
    weights = edge_weights(graph, usual_times(min(map(idle_device_latency, (*a, *b)))))
    lines_a, lines_b = (tuple(map(without_keys, of_side)) for of_side in zip(*lines, strict=True))
    return CommonSteps(
        a=lines_a,
        b=lines_b,
        explained=explained,
        graph=graph,
        weights=weights,
        share=path_shares(graph, weights),
        opens_alike=opens_alike(ranks[explained]),
        is_swapped=is_swapped,
    )


def _digest(trace: Trace) -> bytes:
    """Return a digest of the times of all events."""
    digest = sha256()
    for column in (trace.events.ts, trace.events.dur):
        digest.update(np.ascontiguousarray(column).data)
    return digest.digest()
