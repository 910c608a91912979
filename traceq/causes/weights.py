"""Weights of the common graph's edges on either side, so that its longest paths are the observed times.

At every node one edge binds: it takes exactly the time observed. The others have a weight up to what was observed; an
edge keeps its weight of the other side, or its usual one, unless the trace forces it to be less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.causes.common_graph import CommonGraph
from traceq.causes.edges import IN_A, IN_B, IN_BOTH, EdgeKind
from traceq.facts.events.device_work import device_work
from traceq.model import Trace

__all__ = ["Weights", "edge_weights", "idle_device_latency"]

_FAR = 2**60
_USUAL_NS = {
    EdgeKind.STREAM: 1_500,
    EdgeKind.AWAIT: 3_000,
    EdgeKind.SYNC: 8_000,
    EdgeKind.QUEUE: 8_000,
    EdgeKind.HOLD: 3_000,
}
"""Usual ns of edges that wait; that of a launch is measured."""

_MAX_LATENCY_NS, _USUAL_LATENCY_NS, _FEWEST_LAUNCHES = 20_000, 5_000, 5
_EARLY_NS, _AT_ONCE_NS = 50_000, 20_000
"""A call that returned so long before the work was done did not wait for it; one that took less did not wait."""


@dataclass(frozen=True, slots=True, eq=False)
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


def edge_weights(graph: CommonGraph, latency_ns: int) -> Weights:
    """Return the weights of both sides; `latency_ns` is the usual time from a launch to its start."""
    upper_a, upper_b = (time[graph.edges.target] - time[graph.edges.source] for time in (graph.time_a, graph.time_b))
    usual = np.zeros(len(EdgeKind), np.int64)
    for kind, usual_ns in {**_USUAL_NS, EdgeKind.LAUNCH: latency_ns}.items():
        usual[kind] = usual_ns
    nominal = usual[graph.edges.kind]
    in_vain_a, in_vain_b, never = _in_vain(graph, upper_a, upper_b)
    binds_a = _binding(graph, upper_a, nominal, IN_A, in_vain_a)
    binds_b = _binding(graph, upper_b, nominal, IN_B, in_vain_b)
    least = np.minimum(upper_a, upper_b)
    reference = np.minimum(least, nominal)
    a = np.where(binds_a, upper_a, np.minimum(upper_a, np.where(binds_b, upper_b, reference)))
    b = np.where(binds_b, upper_b, np.minimum(upper_b, np.where(binds_a, upper_a, reference)))
    return Weights(np.where(never, least, a), np.where(never, least, b), binds_a, binds_b)


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

    Absent work passes on the time of its stream, an absent hold that of the host.
    """
    present, kind = (graph.edges.sides & side) > 0, graph.edges.kind
    waits = np.isin(np.arange(len(EdgeKind)), (*_USUAL_NS, EdgeKind.LAUNCH))[kind] & (kind != EdgeKind.HOLD)
    slack = np.where(present | ~waits, upper - np.minimum(nominal, upper), _FAR)
    slack = np.where(in_vain, _FAR, slack)
    slack = np.where(~present & ((kind == EdgeKind.STREAM) | (kind == EdgeKind.HOLD)), -1, slack)
    slack = np.where(~present & (kind == EdgeKind.LAUNCH), _FAR // 2, slack)
    first = graph.first_edge
    has_edge = np.diff(first) > 0
    least = np.minimum.reduceat(slack, first[:-1][has_edge])
    is_least = np.flatnonzero(slack == np.repeat(least, np.diff(first)[has_edge]))
    binds = np.zeros(len(slack), np.bool_)
    target = graph.edges.target[is_least]
    binds[is_least[np.r_[True, target[1:] != target[:-1]]]] = True  # of several the first
    return binds
