"""Edges of one rank on the common graph: the host's line, launches, streams, and waits between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.causes.anchors import AnchorKind
from traceq.causes.holds import HoldKind, waits_for_queue
from traceq.causes.rank_graph import RankGraph
from traceq.facts.events.device_work import DeviceWork, device_work
from traceq.facts.events.stream_waits import stream_waits
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.timeline.data_loading import late_batches
from traceq.frozen import frozen
from traceq.intervals import sorted_unique

IN_A, IN_B, IN_BOTH = 1, 2, 3
"""Sides that have an edge, as bits."""

_COINCIDENCE_NS = 2_000
"""Work that starts earlier than this before the end of other work on one side does not wait for it on the other."""


class EdgeKind(IntEnum):
    """Kind of an edge."""

    HOST = 0
    HOLD = 1
    SYNC = 2
    QUEUE = 3
    LAUNCH = 4
    STREAM = 5
    AWAIT = 6
    DURATION = 7
    MEET = 8
    SINK = 9
    ORIGIN = 10
    HAND_OVER = 11
    BATCH = 12


@frozen(eq=False)
class Edges:
    """E edges: `source`, `target` int32[E] nodes; `kind` int8[E] of EdgeKind; `sides` int8[E] of IN_A, IN_B, IN_BOTH.

    `a`, `b` int32[E]: the work (LAUNCH, STREAM, AWAIT, DURATION) or the hold (HOLD, SYNC) on either side, -1 where
    absent.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    kind: NDArray[np.int8]
    sides: NDArray[np.int8]
    a: NDArray[np.int32]
    b: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.source)

    def take(self, index: NDArray[np.int64]) -> Edges:
        """Return the edges with some indices, in that order."""
        return Edges(*(getattr(self, field.name)[index] for field in fields(self)))

    @classmethod
    def of(
        cls,
        source: NDArray[np.int64],
        target: NDArray[np.int64],
        kind: EdgeKind | NDArray[np.int64],
        sides: NDArray[np.int64] | int = IN_BOTH,
        a: NDArray[np.int64] | int = -1,
        b: NDArray[np.int64] | int = -1,
    ) -> Edges:
        """Return edges of which some columns may be one value for all."""
        size = len(source)
        kinds, of_sides = np.full(size, kind, np.int8), np.full(size, sides, np.int8)
        refs = [np.full(size, side, np.int32) for side in (a, b)]
        return cls(source.astype(np.int32), target.astype(np.int32), kinds, of_sides, *refs)


def joined_edges(parts: Sequence[Edges]) -> Edges:
    """Return all edges of some parts, in order."""
    if len(parts) == 1:
        return parts[0]
    return Edges(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Edges)))


def rank_edges(graph: RankGraph, queue_length: int) -> Edges:
    """Return the edges of one rank; those into the U places of the host come first."""
    return joined_edges([*_parts(graph, queue_length), _full_queue_edges(graph)])


def edges_of_one(graph: RankGraph, queue_length: int) -> Edges:
    """Return the edges of a single recording, sorted by target; all are in both sides, which share their columns.

    Of those into a node the last is that from the origin by which workers of a data loader bring a batch.
    """
    parts = [*_parts(graph, queue_length), _full_queue_edges(graph), _batch_edges(graph)]
    target = np.concatenate([part.target for part in parts])
    order = np.argsort(target, kind="stable")
    source, kind, a = (
        np.concatenate([getattr(part, name) for part in parts])[order] for name in ("source", "kind", "a")
    )
    return Edges(source, target[order], kind, np.broadcast_to(np.int8(IN_BOTH), len(order)), a, a)


def _parts(graph: RankGraph, queue_length: int) -> list[Edges]:
    return [
        _host_edges(graph),
        *_work_edges(graph),
        _await_edges(graph),
        _other_order_edges(graph),
        _sync_edges(graph),
        _hand_over_edges(graph),
        _queue_edges(graph, queue_length),
    ]


def _host_edges(graph: RankGraph) -> Edges:
    """Return the edge into every anchor from the one before it in its chain; the first comes from the origin."""
    is_hold = graph.kind == AnchorKind.HOLD_END
    hold_a, hold_b = (np.where(is_hold, hold, -1) for hold in graph.holds_at(np.arange(len(graph.kind))))
    kind = np.where(is_hold, EdgeKind.HOLD, EdgeKind.HOST)
    kind[0] = EdgeKind.ORIGIN
    sides = np.where(is_hold, _sides_of(hold_a, hold_b), IN_BOTH)
    source = np.where(graph.before >= 0, graph.host_node[graph.before], 0)
    return Edges.of(source, graph.host_node, kind, sides, hold_a, hold_b)


def _sides_of(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    return IN_A * (a >= 0) + IN_B * (b >= 0)


def _work_edges(graph: RankGraph) -> tuple[Edges, Edges, Edges, Edges]:
    """Return the edges from the launch, from the stream's work before, of the duration, and those of early work.

    Work in flight when a session of the profiler began waits for none of the session before.
    """
    work, start = graph.work, graph.start_node
    sides = _sides_of(work.a, work.b)

    def into(units: NDArray[np.int64], source: NDArray[np.int64], kind: EdgeKind) -> Edges:
        return Edges.of(source, start[units], kind, sides[units], work.a[units], work.b[units])

    in_flight = ~work.has_call & (work.place >= 0) & (graph.kind[work.place] == AnchorKind.STEP_END)
    is_first = (work.before < 0) | (in_flight & (work.place[work.before] != work.place))
    launched, follows = np.flatnonzero(work.has_call), np.flatnonzero(~is_first)
    free = np.flatnonzero(~work.has_call & is_first)
    origin = np.where(in_flight[free], graph.host_node[work.place[free]], 0)
    return (
        into(launched, graph.host_node[np.maximum(work.place[launched], 0)], EdgeKind.LAUNCH),
        into(follows, start[work.before[follows]] + 1, EdgeKind.STREAM),
        Edges.of(start, start + 1, EdgeKind.DURATION, sides, work.a, work.b),
        Edges.of(origin, start[free], EdgeKind.ORIGIN),
    )


def _await_edges(graph: RankGraph) -> Edges:
    """Return the edges between streams, of either side.

    One that a single side has, by coincidence of times, is dropped where the other side shows that there is none.
    """
    work, size = graph.work, len(graph.work)
    keys = []
    sides = ((graph.a, work.unit_of_a), (graph.b, work.unit_of_b))
    for line, unit_of in sides[:1] if graph.is_of_one else sides:
        awaits, (early, early_on) = stream_waits(line.trace), early_waits(device_work(line.trace))
        waiting, on = unit_of[np.r_[awaits.work, early]], unit_of[np.r_[awaits.on, early_on]]
        keys.append((waiting * size + on)[(on >= 0) & (on < waiting)])
    key, sides_of_key = _with_sides(keys[0], keys[-1])
    waiting, on = np.divmod(key, max(size, 1))
    start, end = graph.start_node[waiting], graph.start_node[on] + 1
    is_in_a = sides_of_key == IN_A
    on_other = np.where(is_in_a, graph.time_b[start] - graph.time_b[end], graph.time_a[start] - graph.time_a[end])
    is_paired = (work.a >= 0) & (work.b >= 0)
    coincides = (sides_of_key != IN_BOTH) & is_paired[waiting] & is_paired[on] & (on_other < -_COINCIDENCE_NS)
    edges = Edges.of(end, start, EdgeKind.AWAIT, sides_of_key, work.a[waiting], work.b[waiting])
    return edges.take(np.flatnonzero(~coincides))


def _other_order_edges(graph: RankGraph) -> Edges:
    """Return the edges of one stream on which threads launch in another order on B than on A, which decides."""
    work, waiting, on = graph.work, [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number in sorted_unique(work.stream).tolist() if len(graph.a.chains) > 1 else []:
        in_b = np.flatnonzero((work.stream == number) & (work.b >= 0))
        in_b = in_b[np.argsort(graph.time_b[graph.start_node[in_b]], kind="stable")]
        is_other = (in_b[:-1] < in_b[1:]) & (in_b[:-1] != work.before[in_b[1:]])
        waiting.append(in_b[1:][is_other])
        on.append(in_b[:-1][is_other])
    units, before = np.concatenate(waiting), np.concatenate(on)
    start, end = graph.start_node[units], graph.start_node[before] + 1
    return Edges.of(end, start, EdgeKind.AWAIT, IN_B, work.a[units], work.b[units])


def _with_sides(in_a: NDArray[np.int64], in_b: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (the distinct keys of both sides, which sides have each)."""
    key = sorted_unique(in_a, in_b)
    sides = np.zeros(len(key), np.int64)
    sides[np.searchsorted(key, in_a)] |= IN_A
    sides[np.searchsorted(key, in_b)] |= IN_B
    return key, sides


def _sync_edges(graph: RankGraph) -> Edges:
    """Return the edges from work to the end of a hold that waits for it; both sides may wait for the same work."""
    work, size, keys = graph.work, len(graph.work), []
    for line, place_of, unit_of in (
        (graph.a, graph.place_a, work.unit_of_a),
        (graph.b, graph.place_b, work.unit_of_b),
    ):
        place, unit = place_of[line.hold_ends[line.holds.wait]], unit_of[line.holds.work]
        is_forward = (unit >= 0) & (graph.start_node[unit] + 1 < graph.host_node[place])
        keys.append((place * size + unit)[is_forward])
    key, sides = _with_sides(*keys)
    place, unit = np.divmod(key, max(size, 1))
    source, target = graph.start_node[unit] + 1, graph.host_node[place]
    return Edges.of(source, target, EdgeKind.SYNC, sides, *graph.holds_at(place))


def _hand_over_edges(graph: RankGraph) -> Edges:
    """Return the edges from the last anchor of a chain of threads to the end of another one's wait for it."""
    size, keys = len(graph.kind), []
    for line, place_of in ((graph.a, graph.place_a), (graph.b, graph.place_b)):
        ends = line.hold_ends[len(line.holds) - len(line.giver) :]
        giver, place = place_of[line.giver], place_of[ends]
        keys.append((place * size + giver)[giver < place])
    key, sides = _with_sides(*keys)
    place, giver = np.divmod(key, size)
    source, target = graph.host_node[giver], graph.host_node[place]
    return Edges.of(source, target, EdgeKind.HAND_OVER, sides, *graph.holds_at(place))


def _queue_edges(graph: RankGraph, queue_length: int) -> Edges:
    """Return the edges from the work that left the launch queue to the launch that got its place."""
    work = graph.work
    ends = np.flatnonzero(graph.kind == AnchorKind.HOLD_END)
    hold_a, hold_b = graph.holds_at(ends)
    kind = np.where(hold_a >= 0, np.r_[graph.a.holds.kind, -1][hold_a], np.r_[graph.b.holds.kind, -1][hold_b])
    ends = ends[kind == HoldKind.QUEUE] if queue_length else ends[:0]
    paired = np.flatnonzero((work.a >= 0) & (work.b >= 0))
    early = paired[work.place[paired] < 0]
    paired[: len(early)] = early[np.argsort(device_work(graph.a.trace).end[work.a[early]], kind="stable")]
    index = np.searchsorted(work.place[paired], ends, "left") - queue_length - 2
    ends, index = ends[index >= 0], index[index >= 0]
    return Edges.of(graph.start_node[paired[index]] + 1, graph.host_node[ends], EdgeKind.QUEUE)


def _full_queue_edges(graph: RankGraph) -> Edges:
    """Return the edges from the work that left the launch queue to the launch that waited, as either side shows them.

    Work that only one side has fills its queue, too, so the queue's length in common work does not tell what left it.
    """
    size, keys = len(graph.work), []
    for line, place_of, unit_of in (
        (graph.a, graph.place_a, graph.work.unit_of_a),
        (graph.b, graph.place_b, graph.work.unit_of_b),
    ):
        calls, left = waits_for_queue(line.trace)
        queued, hold_of = np.flatnonzero(line.holds.kind == HoldKind.QUEUE), np.full(len(line.trace.events), -1)
        hold_of[line.holds.row[queued]] = queued
        hold = hold_of[calls]
        place, unit = place_of[line.hold_ends[hold[hold >= 0]]], unit_of[left[hold >= 0]]
        is_forward = (unit >= 0) & (graph.start_node[unit] + 1 < graph.host_node[place])
        keys.append((place * size + unit)[is_forward])
    key, sides = _with_sides(*keys)
    place, unit = np.divmod(key, max(size, 1))
    return Edges.of(graph.start_node[unit] + 1, graph.host_node[place], EdgeKind.QUEUE, sides)


def _batch_edges(graph: RankGraph) -> Edges:
    """Return the edges from the origin to the end of each wait for a batch that no worker had made yet."""
    line, waits = graph.a, host_waits(graph.a.trace)
    late = np.flatnonzero((waits.call < 0) & np.isin(waits.end, late_batches(line.trace)[:, 1]))
    target = graph.host_node[graph.place_a[line.hold_ends[late]]]
    return Edges.of(np.zeros_like(target), target, EdgeKind.BATCH)


_MAX_GAP_NS = 12_000
_LEAD_NS = 1_000


def early_waits(work: DeviceWork) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (work, the work of another stream that it waits for), both launched before the window.

    That is the last such work that ended within 12 us before the start, if later than that of its own stream.
    """
    early = np.flatnonzero(work.before_window)
    by_end = early[np.argsort(work.end[early], kind="stable")]
    ends = work.end[by_end]
    previous_end = np.full(len(work), np.iinfo(np.int64).min)
    for number in sorted_unique(work.stream[early]).tolist():
        on_stream = early[work.stream[early] == number]
        previous_end[on_stream[1:]] = work.end[on_stream[:-1]]
    index = np.searchsorted(ends, work.start[early], "right") - 1
    awaited, pending = np.full(len(early), -1), np.arange(len(early))
    while len(pending):
        candidate = np.r_[by_end, -1][index[pending]]
        near = (index[pending] >= 0) & (work.start[early[pending]] - work.end[candidate] < _MAX_GAP_NS)
        near &= work.end[candidate] - _LEAD_NS > previous_end[early[pending]]
        pending, candidate = pending[near], candidate[near]
        is_other = work.stream[candidate] != work.stream[early[pending]]
        awaited[pending[is_other]] = candidate[is_other]
        pending = pending[~is_other]
        index[pending] -= 1
    waits = awaited >= 0
    return early[waits], awaited[waits]
