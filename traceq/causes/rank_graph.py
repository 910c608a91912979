"""Nodes of one rank on the common graph of two recordings: anchors of the host and device work, of either side.

What only one side has is in the graph as well: on the other side it takes no time. Nodes are numbered so that every
edge runs forwards: node 0 is the origin, then the host's anchors in order, each followed by the start and the end of
the work launched there. Anchors of threads that run side by side are in the order in which A has them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.causes.alignment import Alignment, align, aligned_with_itself
from traceq.causes.anchors import AnchorKind, Anchors
from traceq.causes.host_line import HostLine
from traceq.causes.host_shares import HostShares, host_shares, no_shares
from traceq.causes.work_pairs import WorkPairs, paired_with_itself, work_pairs
from traceq.facts.events.device_work import device_work
from traceq.frozen import frozen
from traceq.grouping import absent, inverse
from traceq.intervals import sorted_unique


@frozen(eq=False)
class RankGraph:
    """U places of the host, with the anchors of lines `a` and `b`, and W units of work.

    `anchor_a`, `anchor_b` int64[U], -1 where absent; `kind` int8[U] of AnchorKind; `before` int64[U]: the place before
    it in its chain, -1 for the first of all; `place_a`, `place_b`: the place of each anchor of a side; `host_node`
    int64[U]; `start_node` int64[W], the end of a unit is the next node; `time_a`, `time_b` int64[N] ns of all nodes
    since the first anchor, 0 for the origin.
    """

    a: Anchors
    b: Anchors
    alignment: Alignment
    anchor_a: NDArray[np.int64]
    anchor_b: NDArray[np.int64]
    kind: NDArray[np.int8]
    before: NDArray[np.int64]
    place_a: NDArray[np.int64]
    place_b: NDArray[np.int64]
    host: HostShares
    work: WorkPairs
    host_node: NDArray[np.int64]
    start_node: NDArray[np.int64]
    time_a: NDArray[np.int64]
    time_b: NDArray[np.int64]

    @property
    def is_of_one(self) -> bool:
        """Whether both sides are one recording."""
        return self.a is self.b

    def holds_at(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the holds of either side whose anchors are at some places, -1 where absent."""
        in_a, in_b = self.anchor_a[places], self.anchor_b[places]
        return np.where(in_a >= 0, self.a.ref[in_a], -1), np.where(in_b >= 0, self.b.ref[in_b], -1)


def rank_graph(a: HostLine, b: HostLine) -> RankGraph:
    """Return the nodes of one rank."""
    alignment = align(a, b)
    in_a, in_b = _merged(len(a), len(b), alignment)
    anchor_a, anchor_b = np.r_[a.by_chain, -1][in_a], np.r_[b.by_chain, -1][in_b]
    kind = np.where(anchor_a >= 0, a.kind[anchor_a], b.kind[anchor_b])
    chain = np.where(anchor_a >= 0, a.chain[anchor_a], b.chain[anchor_b])
    host, host_a, host_b = host_shares(a, b, in_a, in_b, kind == AnchorKind.HOLD_END)
    order = _in_time(a, b, anchor_a, anchor_b, chain)
    place = inverse(order, len(order))
    host, before = replace(host, edge=place[host.edge]), _before(place, chain)[order]
    anchor_a, anchor_b, host_a, host_b = (column[order] for column in (anchor_a, anchor_b, host_a, host_b))
    place_a, place_b = _places(anchor_a), _places(anchor_b)
    work = work_pairs(a, b, alignment, place_a, place_b)
    host_node, start_node = _nodes(len(kind), work)
    time_a = _node_times(a, work, work.a, host_a, host_node, start_node)
    time_b = _node_times(b, work, work.b, host_b, host_node, start_node)
    return RankGraph(
        a=a,
        b=b,
        alignment=alignment,
        anchor_a=anchor_a,
        anchor_b=anchor_b,
        kind=kind[order],
        before=before,
        place_a=place_a,
        place_b=place_b,
        host=host,
        work=work,
        host_node=host_node,
        start_node=start_node,
        time_a=time_a,
        time_b=time_b,
    )


def graph_of_one(line: Anchors) -> RankGraph:
    """Return the nodes of one rank of a single recording, which is both sides; its host time has no owners."""
    places, work = np.arange(len(line)), paired_with_itself(line)
    host_node, start_node = _nodes(len(line), work)
    time = _node_times(line, work, work.a, line.time_ns - line.time_ns[0], host_node, start_node)
    return RankGraph(
        a=line,
        b=line,
        alignment=aligned_with_itself(line),
        anchor_a=places,
        anchor_b=places,
        kind=line.kind,
        before=_before(line.by_chain, line.chain[line.by_chain])[inverse(line.by_chain, len(line))],
        place_a=places,
        place_b=places,
        host=no_shares(),
        work=work,
        host_node=host_node,
        start_node=start_node,
        time_a=time,
        time_b=time,
    )


def _nodes(num_places: int, work: WorkPairs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (the node of each place of the host, that of the start of each unit of work)."""
    num_before = np.searchsorted(work.place, np.arange(num_places), "left")
    num_before[0] = 0  # work from before the window, of place -1, follows the first anchor
    host_node = 1 + np.arange(num_places) + 2 * num_before
    return host_node, 2 + np.maximum(work.place, 0) + 2 * np.arange(len(work))


def _places(anchor: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each anchor of a side."""
    present = np.flatnonzero(anchor >= 0)
    places: NDArray[np.int64] = present[np.argsort(anchor[present])]
    return places


def _before(place: NDArray[np.int64], chain: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[U]: the place before each anchor by chain; that of the first chain's first before other chains."""
    before: NDArray[np.int64] = np.r_[-1, place[:-1]]
    before[np.flatnonzero(np.diff(chain)) + 1] = place[0]
    return before


def _in_time(
    a: HostLine, b: HostLine, anchor_a: NDArray[np.int64], anchor_b: NDArray[np.int64], chain: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return int64[U]: the merged anchors by chain, in one order that every chain keeps: as A has them.

    Those that only B has are at the time of A at which the first chain is as far as it is then in B.
    """
    if len(a.chains) == 1:
        return np.arange(len(chain))
    paired = (anchor_a >= 0) & (anchor_b >= 0) & (chain == 0)
    as_in_a = np.interp(b.time_ns[anchor_b], b.time_ns[anchor_b[paired]], a.time_ns[anchor_a[paired]])
    time = np.where(anchor_a >= 0, a.time_ns[anchor_a], np.rint(as_in_a).astype(np.int64))
    for number in range(len(a.chains)):
        of_chain = np.flatnonzero(chain == number)
        until = np.where(anchor_a[of_chain] >= 0, time[of_chain], np.iinfo(np.int64).max)
        until = np.minimum.accumulate(until[::-1])[::-1]
        time[of_chain] = np.maximum.accumulate(np.minimum(time[of_chain], until))
    return np.argsort(time, kind="stable")


def _merged(num_a: int, num_b: int, alignment: Alignment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the anchors by chain of both sides in one order: in each gap between pairs first A's, then B's."""
    only_a, only_b = absent(alignment.a, num_a), absent(alignment.b, num_b)
    gap = np.r_[np.searchsorted(alignment.a, only_a), np.searchsorted(alignment.b, only_b), np.arange(len(alignment.a))]
    rank = np.repeat([0, 1, 2], [len(only_a), len(only_b), len(alignment.a)])
    in_a = np.r_[only_a, np.full(len(only_b), -1), alignment.a]
    in_b = np.r_[np.full(len(only_a), -1), only_b, alignment.b]
    order = np.lexsort((np.maximum(in_a, in_b), rank, gap))
    return in_a[order], in_b[order]


def _node_times(
    line: Anchors,
    units: WorkPairs,
    index: NDArray[np.int64],
    host_ns: NDArray[np.int64],
    host_node: NDArray[np.int64],
    start_node: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return int64[N] ns of one side; absent work starts and ends when the work before it on its stream has ended.

    Before the first work of a side on a stream that is when the first unit of the stream is launched.
    """
    work = device_work(line.trace)
    time = np.zeros(1 + len(host_node) + 2 * len(start_node), np.int64)
    time[host_node] = host_ns
    present = index >= 0
    start, end = (np.where(present, column[index] - line.time_ns[0], 0) for column in (work.start, work.end))
    for number in sorted_unique(units.stream).tolist():
        on_stream = np.flatnonzero(units.stream == number)
        latest = np.maximum.accumulate(np.where(present[on_stream], np.arange(len(on_stream)), -1))
        place = int(units.place[on_stream[0]])
        launched = int(time[host_node[place]]) if place >= 0 else 0
        before = np.where(latest >= 0, end[on_stream[latest]], launched)
        absent = ~present[on_stream]
        start[on_stream[absent]] = end[on_stream[absent]] = before[absent]
    time[start_node], time[start_node + 1] = start, end
    return time
