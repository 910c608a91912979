"""Common graph of two recordings: the anchors, device work and dependencies of both, on one rank or on several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from traceq.causes.edges import IN_BOTH, EdgeKind, Edges, edges_of_one, joined_edges, rank_edges
from traceq.causes.host_shares import HostShares
from traceq.causes.longest_path import first_edges, topological_order
from traceq.causes.rank_graph import RankGraph
from traceq.causes.windows import StepWindows, step_windows
from traceq.frozen import frozen
from traceq.intervals import span_index


@frozen
class RankClock:
    """When a rank's first anchor is on either side, ns since that of the rank that is first."""

    start_a: int = 0
    start_b: int = 0


@frozen(eq=False, slots=False)  # no slots: what follows from the fields is kept
class CommonGraph:
    """N nodes and E edges that run forwards, sorted by target; node 0 is the origin.

    `time_a`, `time_b` int64[N] ns; `edges` of E; `rank` int32[E]: index of the rank that an edge is on; `host`: the
    shares of HOST and HOLD edges by owner. `windows` int32[W, 2]: the nodes at which runs of the explained rank's
    paired steps begin and end; `steps` int64[K, 2]: their index on either side; `step` int32[E]: in which of these the
    host of an edge's rank is at its end, or launched the work there, else -1. `gap` int32[E]: the same number where the
    host is between the same two anchors of both sides, -1 of work that one of these launched. `num_anchors` (A's, B's,
    pairs) of aligned steps.
    """

    time_a: NDArray[np.int64]
    time_b: NDArray[np.int64]
    edges: Edges
    rank: NDArray[np.int32]
    host: HostShares
    windows: NDArray[np.int32]
    steps: NDArray[np.int64]
    step: NDArray[np.int32]
    gap: NDArray[np.int32]
    num_anchors: tuple[int, int, int]

    @property
    def num_steps(self) -> int:
        """Number of paired steps."""
        return len(self.steps)

    @cached_property
    def first_edge(self) -> NDArray[np.int32]:
        """int32[N + 1]: the first edge into each node."""
        return first_edges(self.edges.target, len(self.time_a))


@frozen(eq=False)
class RecordingGraph:
    """Graph of one rank of a single recording: nodes and edges as in CommonGraph, of which both sides are equal."""

    time_a: NDArray[np.int64]
    edges: Edges
    first_edge: NDArray[np.int32]


def recording_graph(rank: RankGraph, queue_length: int) -> RecordingGraph:
    """Return the graph of one rank of a single recording."""
    edges = edges_of_one(rank, queue_length)
    return RecordingGraph(rank.time_a, edges, first_edges(edges.target, len(rank.time_a)))


def common_graph(
    ranks: Sequence[RankGraph],
    clocks: Sequence[RankClock],
    explained: int,
    queue_length: int,
    meetings: NDArray[np.int64] | None = None,
) -> CommonGraph:
    """Return the common graph of some ranks; its windows are those of the rank with the index `explained`.

    `meetings` int64[M, R]: the unit of work with which each rank takes part in a collective, -1 where it does not: no
    rank's part runs before the last has started.
    """
    first_node = np.cumsum([0, *(len(rank.time_a) for rank in ranks)])
    parts = [rank_edges(rank, queue_length) for rank in ranks]
    num_edges = np.cumsum([0, *(len(part) for part in parts)])
    times = [
        np.concatenate([_on_job_clock(time, start) for time, start in zip(rank_times, starts, strict=True)])
        for rank_times, starts in (
            ([rank.time_a for rank in ranks], [clock.start_a for clock in clocks]),
            ([rank.time_b for rank in ranks], [clock.start_b for clock in clocks]),
        )
    ]
    edges = joined_edges([_shifted(part, int(node)) for part, node in zip(parts, first_node, strict=False)])
    rank_of_edge = np.repeat(np.arange(len(ranks), dtype=np.int32), [len(part) for part in parts])
    rank_windows = [step_windows(rank) for rank in ranks]
    windows = rank_windows[explained]
    extra: list[Edges] = []
    if meetings is not None and len(meetings):
        edges, meets, met_times = _with_meetings(ranks, first_node, edges, times, meetings)
        times = [np.r_[time, met] for time, met in zip(times, met_times, strict=True)]
        extra.append(meets)
    sinks = [first_node[explained] + incoming for incoming in windows.sinks]
    size = len(times[0])
    target = np.repeat(size + np.arange(len(sinks)), [len(incoming) for incoming in sinks])
    extra.append(Edges.of(np.concatenate([first_node[:0], *sinks]), target, EdgeKind.SINK))
    times = [np.r_[time, *(time[incoming].max(keepdims=True) for incoming in sinks)] for time in times]
    edges = joined_edges([edges, *extra])
    rank_of_edge = np.r_[rank_of_edge, np.full(sum(map(len, extra)), explained, np.int32)]
    number = _numbers(edges, len(times[0])) if len(ranks) > 1 else np.arange(len(times[0]), dtype=np.int32)
    order = np.argsort(number[edges.target], kind="stable")
    step = _renumbered(_steps_of_nodes(len(number), rank_windows, first_node, windows.steps[:, 0]), number)
    gap = _renumbered(_gaps_of_nodes(len(number), ranks, first_node), number)
    of_edge = np.empty(len(order), np.int64)
    of_edge[order] = np.arange(len(order))
    edges = edges.take(order)
    edges = replace(edges, source=number[edges.source], target=number[edges.target])
    return CommonGraph(
        time_a=_renumbered(times[0], number),
        time_b=_renumbered(times[1], number),
        edges=edges,
        rank=rank_of_edge[order],
        host=_joined_shares([rank.host for rank in ranks], [of_edge[first:] for first in num_edges.tolist()]),
        windows=number[size + np.arange(len(sinks))].reshape(-1, 2),
        steps=windows.steps,
        step=step[edges.target].astype(np.int32),
        gap=gap[np.where(edges.kind == EdgeKind.HOST, edges.source, edges.target)].astype(np.int32),
        num_anchors=_num_anchors(ranks),
    )


def _joined_shares(ranks: Sequence[HostShares], edge_of_place: Sequence[NDArray[np.int64]]) -> HostShares:
    """Return the shares of all ranks on the job's edges: those into the places of a rank's host come first."""
    first_owner = np.cumsum([0, *(len(shares.owners) for shares in ranks)]).tolist()
    return HostShares(
        edge=np.concatenate([edges[shares.edge] for shares, edges in zip(ranks, edge_of_place, strict=False)]),
        owner=np.concatenate([shares.owner + first for shares, first in zip(ranks, first_owner, strict=False)]),
        a_ns=np.concatenate([shares.a_ns for shares in ranks]),
        b_ns=np.concatenate([shares.b_ns for shares in ranks]),
        owners=tuple(owner for shares in ranks for owner in shares.owners),
    )


def _on_job_clock(time: NDArray[np.int64], start_ns: int) -> NDArray[np.int64]:
    """Return a rank's times from the job's first anchor on; the origin stays at 0."""
    return np.concatenate([time[:1], time[1:] + start_ns])


def _shifted(edges: Edges, num_nodes: int) -> Edges:
    return replace(edges, source=edges.source + num_nodes, target=edges.target + num_nodes)


def _renumbered(of_node: NDArray[np.int64], number: NDArray[np.int32]) -> NDArray[np.int64]:
    renumbered = np.empty_like(of_node)
    renumbered[number] = of_node
    return renumbered


def _with_meetings(
    ranks: Sequence[RankGraph],
    first_node: NDArray[np.int64],
    edges: Edges,
    times: Sequence[NDArray[np.int64]],
    meetings: NDArray[np.int64],
) -> tuple[Edges, Edges, list[NDArray[np.int64]]]:
    """Return (the edges with parts of collectives after their meeting, edges into the meetings, when these are).

    On the side that lacks a collective no rank waits there for another one: a part ends with what is before it.
    """
    size, source = len(times[0]), edges.source.copy()
    instance, rank = np.nonzero(meetings >= 0)
    start = np.empty(len(instance), np.int64)
    for index, graph in enumerate(ranks):
        of_rank = np.flatnonzero(rank == index)
        start[of_rank] = first_node[index] + graph.start_node[meetings[instance[of_rank], index]]
    node_of_start = np.full(size, -1)
    node_of_start[start] = size + instance
    runs = np.flatnonzero(edges.kind == EdgeKind.DURATION)
    meets = node_of_start[edges.source[runs]]
    source[runs[meets >= 0]] = meets[meets >= 0]
    met = []
    for time in times:
        latest = np.full(len(meetings), np.iinfo(np.int64).min)
        np.maximum.at(latest, instance, time[start])
        met.append(latest)
    absent = runs[(meets >= 0) & (edges.sides[runs] != IN_BOTH)]
    lacking = IN_BOTH - edges.sides[absent].astype(np.int64)
    passes = Edges.of(edges.source[absent], edges.target[absent], EdgeKind.MEET, lacking)
    meets_at = Edges.of(start, size + instance, EdgeKind.MEET, IN_BOTH)
    return replace(edges, source=source), joined_edges([meets_at, passes]), met


def _numbers(edges: Edges, size: int) -> NDArray[np.int32]:
    """Return int32[N]: numbers of the nodes by which every edge runs forwards."""
    order = topological_order(edges.source, edges.target, size)
    number = np.empty(size, np.int32)
    number[order] = np.arange(size)
    return number


def _steps_of_nodes(
    size: int, rank_windows: Sequence[StepWindows], first_node: NDArray[np.int64], paired: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return int64[size]: which of the `paired` steps of A each node is in, by its rank's windows, -1 in none."""
    step = np.full(size, -1)
    for windows, first in zip(rank_windows, first_node.tolist(), strict=False):
        of_rank = windows.steps[:, 0]
        index = np.where(np.isin(of_rank, paired, kind="table"), np.searchsorted(paired, of_rank), -1)
        window = span_index(windows.nodes + first, np.arange(size))
        inside = np.flatnonzero(window >= 0)
        step[inside] = index[window[inside]]
    return step


def _gaps_of_nodes(size: int, ranks: Sequence[RankGraph], first_node: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[size]: the number of the last anchor of both sides before each node, another one on each rank.

    -1 of work that such an anchor launched.
    """
    gap, num = np.full(size, -1), 0
    for rank, first in zip(ranks, first_node.tolist(), strict=False):
        is_common, nodes = (rank.anchor_a >= 0) & (rank.anchor_b >= 0), np.arange(len(rank.time_a))
        place = np.maximum(np.searchsorted(rank.host_node, nodes, "right") - 1, 0)
        is_work = rank.host_node[place] != nodes
        gap[first + nodes] = np.where(is_work & is_common[place], -1, num + np.cumsum(is_common)[place])
        num += int(is_common.sum()) + 1
    return gap


def _num_anchors(ranks: Sequence[RankGraph]) -> tuple[int, int, int]:
    return (
        sum(rank.alignment.num_a for rank in ranks),
        sum(rank.alignment.num_b for rank in ranks),
        sum(len(rank.alignment.a) for rank in ranks),
    )
