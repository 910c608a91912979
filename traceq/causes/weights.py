"""Weights of the common graph's edges on either side, so that its longest paths are the observed times.

At every node one edge binds: it takes exactly the time observed. The others have a weight up to what was observed; an
edge keeps its weight of the other side, or its usual one, unless the trace forces it to be less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.causes.common_graph import CommonGraph, RecordingGraph
from traceq.causes.edges import IN_A, IN_B, IN_BOTH, EdgeKind
from traceq.causes.longest_path import least_into_each
from traceq.facts.events.device_work import device_work
from traceq.frozen import frozen
from traceq.model import Trace

_FAR = 2**60
_USUAL_NS = {
    EdgeKind.STREAM: 1_500,
    EdgeKind.AWAIT: 3_000,
    EdgeKind.SYNC: 8_000,
    EdgeKind.QUEUE: 8_000,
    EdgeKind.HOLD: 3_000,
    EdgeKind.HAND_OVER: 20_000,
}
"""Usual ns of edges that wait; that of a launch is measured."""

_WAITS = np.isin(
    list(EdgeKind), [EdgeKind.LAUNCH, EdgeKind.MEET, *(kind for kind in _USUAL_NS if kind != EdgeKind.HOLD)]
)
"""Whether edges of each kind wait for work, or for another thread or rank."""

_MAX_LATENCY_NS, _USUAL_LATENCY_NS, _FEWEST_LAUNCHES = 20_000, 5_000, 5
_EARLY_NS, _AT_ONCE_NS = 50_000, 20_000
"""A call that returned so long before the work was done did not wait for it; one that took less did not wait."""


@frozen(eq=False)
class Weights:
    """`a`, `b` int64[E] ns of every edge on either side; `binds_a`, `binds_b` bool[E]: its node waits for it."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    binds_a: NDArray[np.bool_]
    binds_b: NDArray[np.bool_]


def idle_device_latency(trace: Trace) -> int:
    """Return the median ns from launch to start of work that found the device idle, at most 20 us."""
    work = device_work(trace)
    if len(work) == 0:
        return _USUAL_LATENCY_NS
    reach = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(work.end)[:-1]]
    launched = trace.events.ts[work.call]
    waited = (work.start - launched)[work.linked & (reach <= launched)]
    if len(waited) < _FEWEST_LAUNCHES:
        return _USUAL_LATENCY_NS
    return int(np.clip(np.median(waited), 0, _MAX_LATENCY_NS))


def usual_times(latency_ns: int) -> NDArray[np.int64]:
    """Return int64[len(EdgeKind)] ns that edges of each kind usually take; `latency_ns` that of a launch."""
    usual = np.zeros(len(EdgeKind), np.int64)
    for kind, usual_ns in {**_USUAL_NS, EdgeKind.LAUNCH: latency_ns}.items():
        usual[kind] = usual_ns
    return usual


def measured_times(graph: RecordingGraph, latency_ns: int) -> NDArray[np.int64]:
    """Return int64[len(EdgeKind)] ns that edges of each kind usually take in one recording.

    That is the median over nodes that waited for nothing else by then, for a launch latency, at most 20 us; a call
    takes as long as it needs to return from a wait. `usual_times` where that never happened.
    """
    usual, edges = usual_times(latency_ns), graph.edges
    begin = graph.time_a[edges.source]
    first = graph.first_edge
    has_edge = np.diff(first) > 0
    latest = np.full(len(graph.time_a), np.iinfo(np.int64).min)
    latest[has_edge] = np.maximum.reduceat(begin, first[:-1][has_edge])
    is_latest = begin == latest[edges.target]
    others = np.where(is_latest, np.iinfo(np.int64).min, begin)
    second = np.full(len(graph.time_a), np.iinfo(np.int64).min)
    second[has_edge] = np.maximum.reduceat(others, first[:-1][has_edge])
    for kind in (EdgeKind.STREAM, EdgeKind.AWAIT, EdgeKind.SYNC):
        of_kind = np.flatnonzero(is_latest & (edges.kind == kind))
        target, since = edges.target[of_kind], begin[of_kind]
        is_alone = (second[target] <= since - latency_ns) & (np.diff(first)[target] > 1)
        took = graph.time_a[target] - since
        chosen = took[is_alone & (took >= 0)]  # not of calls that did not wait
        if len(chosen):
            usual[kind] = min(int(np.median(chosen)), _MAX_LATENCY_NS)
        elif kind == EdgeKind.AWAIT:
            usual[kind] = min(usual[kind], usual[EdgeKind.STREAM])
    usual[EdgeKind.QUEUE] = usual[EdgeKind.HOLD] = usual[EdgeKind.SYNC]
    return usual


def edge_weights(graph: CommonGraph, usual_ns: NDArray[np.int64]) -> Weights:
    """Return the weights of both sides, given the `usual_times`."""
    upper_a, upper_b = (time[graph.edges.target] - time[graph.edges.source] for time in (graph.time_a, graph.time_b))
    nominal = usual_ns[graph.edges.kind]
    in_vain_a, in_vain_b, never = _in_vain(graph, upper_a, upper_b)
    binds_a = _binding(graph, upper_a, nominal, IN_A, in_vain_a)
    binds_b = _binding(graph, upper_b, nominal, IN_B, in_vain_b)
    least = np.minimum(upper_a, upper_b)
    reference = np.minimum(least, nominal)
    a = np.where(binds_a, upper_a, np.minimum(upper_a, np.where(binds_b, upper_b, reference)))
    b = np.where(binds_b, upper_b, np.minimum(upper_b, np.where(binds_a, upper_a, reference)))
    return Weights(np.where(never, least, a), np.where(never, least, b), binds_a, binds_b)


def weights_of_one(graph: RecordingGraph, usual_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[E] ns: the weights of the graph of one recording, as `edge_weights` has them of two equal sides."""
    upper, kind = graph.time_a[graph.edges.target] - graph.time_a[graph.edges.source], graph.edges.kind
    nominal = usual_ns[kind]
    backwards = np.flatnonzero(upper < 0)
    kind_backwards, ns = kind[backwards], upper[backwards]
    slack = np.maximum(upper - nominal, 0)
    may_be_early = (kind_backwards == EdgeKind.SYNC) | (kind_backwards == EdgeKind.STREAM)
    slack[backwards] = np.where(may_be_early, -ns, 0)
    is_sync = (kind_backwards == EdgeKind.SYNC) | (kind_backwards == EdgeKind.QUEUE)
    in_vain = backwards[is_sync & (ns < -_EARLY_NS)]
    slack[in_vain] = _FAR
    binds = least_into_each(graph.first_edge, slack)
    weight: NDArray[np.int64] = np.minimum(upper, nominal)
    weight[binds], weight[in_vain] = upper[binds], upper[in_vain]
    batches = np.flatnonzero(kind == EdgeKind.BATCH)
    weight[batches] = upper[batches]
    return weight


def _in_vain(
    graph: CommonGraph, upper_a: NDArray[np.int64], upper_b: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (which edges to a hold cannot bind on A, on B, and which bind on no side: bool[E]).

    A call that returned well before the work was done did not wait for it. If the other side's call took no time, that
    did not either.
    """
    is_sync = (graph.edges.kind == EdgeKind.SYNC) | (graph.edges.kind == EdgeKind.QUEUE)
    hold = np.full(len(graph.time_a), -1)
    hold_edges = np.flatnonzero(graph.edges.kind == EdgeKind.HOLD)
    hold[graph.edges.target[hold_edges]] = hold_edges
    hold = hold[graph.edges.target]
    both = is_sync & (graph.edges.sides[hold] == IN_BOTH)
    early_a, early_b = is_sync & (upper_a < -_EARLY_NS), is_sync & (upper_b < -_EARLY_NS)
    early_a &= ((graph.edges.sides & IN_A) > 0) | both
    early_b &= ((graph.edges.sides & IN_B) > 0) | both
    in_vain_a = early_a | (both & early_b & (upper_a[hold] < _AT_ONCE_NS))
    in_vain_b = early_b | (both & early_a & (upper_b[hold] < _AT_ONCE_NS))
    never = (in_vain_a & in_vain_b) | (in_vain_a & ~both & (graph.edges.sides == IN_A))
    return in_vain_a, in_vain_b, never | (in_vain_b & ~both & (graph.edges.sides == IN_B))


def _binding(
    graph: CommonGraph,
    upper: NDArray[np.int64],
    nominal: NDArray[np.int64],
    side: int,
    in_vain: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return bool[E]: of the edges into each node the one with the least slack beyond the usual.

    Absent work passes on the time of its stream, an absent hold that of the host. A collective that is absent waits for
    no rank.
    """
    present, kind = (graph.edges.sides & side) > 0, graph.edges.kind
    waits = _WAITS[kind]
    slack = np.where(present | ~waits, upper - np.minimum(nominal, upper), _FAR)
    may_be_early = (kind == EdgeKind.SYNC) | (kind == EdgeKind.STREAM)
    slack = np.where(may_be_early & present & (upper < 0), -upper, slack)  # clocks differ, or it did not wait
    slack = np.where(in_vain, _FAR, slack)
    slack = np.where(~present & ((kind == EdgeKind.STREAM) | (kind == EdgeKind.HOLD)), -1, slack)
    slack = np.where(~present & ((kind == EdgeKind.LAUNCH) | (kind == EdgeKind.DURATION)), _FAR // 2, slack)
    binds = np.zeros(len(slack), np.bool_)
    binds[least_into_each(graph.first_edge, slack)] = True
    return binds
