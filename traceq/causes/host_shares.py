"""Host time of both sides by owner, on the edges of the common host line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.causes.host_line import ONCE, HostLine, HostOwner, host_pieces
from traceq.facts.timeline.host_pauses import PAUSES
from traceq.frozen import frozen
from traceq.grouping import absent, group


@frozen(eq=False)
class HostShares:
    """S shares of host time: `edge` int64[S], `owner` int64[S] into `owners`, `a_ns`, `b_ns` int64[S]."""

    edge: NDArray[np.int64]
    owner: NDArray[np.int64]
    a_ns: NDArray[np.int64]
    b_ns: NDArray[np.int64]
    owners: tuple[HostOwner, ...]

    def take(self, chosen: NDArray[np.bool_]) -> HostShares:
        """Return some of the shares."""
        if chosen.all():
            return self
        columns = {name: getattr(self, name)[chosen] for name in ("edge", "owner", "a_ns", "b_ns")}
        return replace(self, **columns)


def no_shares() -> HostShares:
    """Return the shares of a graph whose host time has no owners."""
    nothing = np.empty(0, np.int64)
    return HostShares(nothing, nothing, nothing, nothing, ())


@frozen(eq=False)
class _Pieces:
    """P pieces of host time: `place` int64[P] of the edge, `owner` int64[P], `ns` int64[P]."""

    place: NDArray[np.int64]
    owner: NDArray[np.int64]
    ns: NDArray[np.int64]

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> _Pieces:
        return _Pieces(self.place[chosen], self.owner[chosen], self.ns[chosen])


def host_shares(
    a: HostLine, b: HostLine, of_a: NDArray[np.int64], of_b: NDArray[np.int64], is_hold: NDArray[np.bool_]
) -> tuple[HostShares, NDArray[np.int64], NDArray[np.int64]]:
    """Return (the shares on the edges into each of U places, int64[U] ns since the first anchor of A at each, of B).

    `of_a`, `of_b` int64[U] are the anchors by chain of both sides, -1 where absent.

    A segment of one side that anchors of the other interrupt is split, owner by owner, in proportion to the other
    side's pieces; what has no counterpart stays together. `is_hold` bool[U]: edges that are holds and get no part.
    """
    numbers: dict[HostOwner, int] = {}
    sides = []
    for line, anchors in ((a, of_a), (b, of_b)):
        host, places = host_pieces(line), np.flatnonzero(anchors >= 0)
        number = np.array([numbers.setdefault(owner, len(numbers)) for owner in host.owners], np.int64)
        pieces = _Pieces(places[host.segment + 1], number[host.owner], host.ns)
        sides.append((pieces, places[host.segment] + 1, places))
    direct = [pieces.take(first == pieces.place) for pieces, first, _ in sides]
    whole = [
        _joined(direct[side], _split(pieces, first, direct[1 - side], is_hold))
        for side, (pieces, first, _) in enumerate(sides)
    ]
    groups = group([np.r_[whole[0].place, whole[1].place], np.r_[whole[0].owner, whole[1].owner]])
    times = [
        _times(line, places, pieces, len(of_a))
        for line, (_, _, places), pieces in zip((a, b), sides, whole, strict=True)
    ]
    a_ns, b_ns = np.zeros((2, len(groups.keys)), np.int64)
    ids_a, ids_b = np.split(groups.group_ids, [len(whole[0].ns)])
    np.add.at(a_ns, ids_a, whole[0].ns)
    np.add.at(b_ns, ids_b, whole[1].ns)
    edge, owner = groups.keys.T
    for name in (ONCE, PAUSES):
        is_apart = np.isin(owner, [number for each, number in numbers.items() if each.name == name])
        a_ns, b_ns = (ns + _known_to(other, ns, edge, is_apart) for ns, other in ((a_ns, b_ns), (b_ns, a_ns)))
    return HostShares(edge, owner, a_ns, b_ns, tuple(numbers)), times[0], times[1]


def _known_to(
    other: NDArray[np.int64], ns: NDArray[np.int64], edge: NDArray[np.int64], is_once: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return int64[S]: what is to be added to a side's shares, `ns`, for its time that is not once to the `other` side.

    Whether time is once is told of each side by itself, by what of it the device does not hide; a change elsewhere may
    reveal it. What the other side does on the same edge as usual is no difference between the two.
    """
    once_ns, lacking_ns = np.zeros(edge.max(initial=0) + 1, np.int64), np.where(is_once, 0, np.maximum(other - ns, 0))
    once_ns[edge[is_once]] = np.maximum(ns - other, 0)[is_once]
    order = np.argsort(edge, kind="stable")
    before = np.cumsum(lacking_ns[order]) - lacking_ns[order]
    before -= before[np.searchsorted(edge[order], edge[order])]  # on the same edge
    more = np.zeros(len(edge), np.int64)
    more[order] = np.clip(once_ns[edge[order]] - before, 0, lacking_ns[order])
    moved = np.zeros(len(once_ns), np.int64)
    np.add.at(moved, edge, more)
    return more - np.where(is_once, moved[edge], 0)


def _joined(*parts: _Pieces) -> _Pieces:
    if len(chosen := [part for part in parts if len(part.ns)]) == 1:
        return chosen[0]
    return _Pieces(*(np.concatenate([getattr(part, field) for part in parts]) for field in ("place", "owner", "ns")))


def _split(pieces: _Pieces, first: NDArray[np.int64], others: _Pieces, is_hold: NDArray[np.bool_]) -> _Pieces:
    """Return the pieces of segments that cover several edges, `first` to `pieces.place`, on single edges."""
    wide = np.flatnonzero(first < pieces.place)
    if len(wide) == 0:
        return pieces.take(wide)
    segment, segment_of_piece = np.unique(
        pieces.place[wide], return_inverse=True
    )  # a segment is named by its last edge
    segment_first = np.empty(len(segment), np.int64)
    segment_first[segment_of_piece] = first[wide]
    index = np.minimum(np.searchsorted(segment, others.place), len(segment) - 1)
    within = (segment_first[index] <= others.place) & (others.place <= segment[index]) & ~is_hold[others.place]
    others, others_segment = others.take(within), index[within]
    size = 1 + max(int(pieces.owner.max()), int(others.owner.max(initial=0)))
    piece_key = segment_of_piece * size + pieces.owner[wide]
    order = np.argsort(piece_key)
    keys = piece_key[order]
    position = np.minimum(np.searchsorted(keys, others_segment * size + others.owner), len(keys) - 1)
    shared = (keys[position] == others_segment * size + others.owner) & (others.ns > 0)
    others, others_segment, source = others.take(shared), others_segment[shared], order[position[shared]]
    parts = _in_proportion(pieces.ns[wide], source, others.ns)
    split = _Pieces(others.place, others.owner, parts)
    most = _largest(segment, others_segment, others.place, parts)
    alone = absent(source, len(wide))
    return _joined(split, _Pieces(most[segment_of_piece[alone]], pieces.owner[wide[alone]], pieces.ns[wide[alone]]))


def _in_proportion(ns: NDArray[np.int64], source: NDArray[np.int64], weight: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[K]: ns[source] split in proportion to the weights of its parts, in whole ns that add up to it."""
    order = np.argsort(source, kind="stable")
    sorted_source, running = source[order], np.cumsum(weight[order].astype(np.float64))
    first = np.searchsorted(sorted_source, sorted_source)
    last = np.searchsorted(sorted_source, sorted_source, "right") - 1
    base = running[first] - weight[order][first]
    total = running[last] - base
    until = np.rint(ns[sorted_source] * ((running - base) / np.maximum(total, 1))).astype(np.int64)
    until[last] = ns[sorted_source][last]
    is_first = np.arange(len(order)) == first
    parts = np.empty(len(order), np.int64)
    parts[order] = until - np.where(is_first, 0, np.r_[0, until[:-1]])
    return parts


def _largest(
    segment: NDArray[np.int64], of_part: NDArray[np.int64], place: NDArray[np.int64], ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return int64[segments]: the edge of each segment with most ns of the split parts, without any its last edge."""
    largest = segment.copy()
    if len(ns):
        groups = group([of_part, place])
        totals = groups.totals(ns)
        order = np.lexsort((-groups.keys[:, 1], totals, groups.keys[:, 0]))  # the last of each segment is its largest
        largest[groups.keys[order, 0]] = groups.keys[order, 1]
    return largest


def _times(line: HostLine, places: NDArray[np.int64], pieces: _Pieces, size: int) -> NDArray[np.int64]:
    """Return int64[U] ns: when this side passes each place; one that it lacks after the pieces on the edges before."""
    on_edge = np.zeros(size, np.int64)
    np.add.at(on_edge, pieces.place, pieces.ns)
    passed = np.cumsum(on_edge)
    latest = np.full(size, -1)
    latest[places] = np.arange(len(places))
    latest = np.maximum.accumulate(latest)
    is_before = latest < 0
    time: NDArray[np.int64] = line.time_ns[line.by_chain][np.maximum(latest, 0)] - line.time_ns[0]
    return np.where(is_before, 0, time + passed - passed[places[np.maximum(latest, 0)]])
