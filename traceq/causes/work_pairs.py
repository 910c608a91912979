"""Pairs of device work of both sides, in the order of the common host line."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.causes.alignment import Alignment
from traceq.causes.anchors import Anchors
from traceq.causes.common_subsequence import common_subsequence
from traceq.causes.host_line import HostLine
from traceq.facts.events.device_work import device_work
from traceq.frozen import frozen
from traceq.grouping import absent, group, inverse
from traceq.intervals import sorted_unique


@frozen(eq=False)
class WorkPairs:
    """W units of device work, each of one side or of both, in launch order.

    `a`, `b` int64[W] into DeviceWork of either side, -1 where absent; `place` int64[W]: of the anchor after which it
    enters, -1 for work from before the window; `stream` int64[W], a number common to both sides; `before` int64[W]: the
    unit before it on its stream, -1 for the first; `has_call` bool[W]: a call launched it. `unit_of_a`, `unit_of_b`:
    the unit of each piece of work, -1 where it has none.
    """

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    place: NDArray[np.int64]
    stream: NDArray[np.int64]
    before: NDArray[np.int64]
    has_call: NDArray[np.bool_]
    unit_of_a: NDArray[np.int64]
    unit_of_b: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.place)


def work_pairs(
    a: HostLine, b: HostLine, alignment: Alignment, of_a: NDArray[np.int64], of_b: NDArray[np.int64]
) -> WorkPairs:
    """Return the paired work: of a matched call by a common subsequence of names, of replaced calls by position.

    `of_a`, `of_b`: the place of each anchor of a side. Work that the two sides run on different streams is no pair,
    nor is a kernel and a copy.
    """
    work_a, work_b = device_work(a.trace), device_work(b.trace)
    place_a, place_b = (np.where(line.launch >= 0, places[line.launch], -1) for line, places in ((a, of_a), (b, of_b)))
    in_a, in_b, sequence_a, sequence_b = _by_call(a, b, place_a, place_b)
    exact_places = of_a[a.by_chain[alignment.a[alignment.exact]]]
    weight = np.where(np.isin(place_a[in_a], exact_places), len(in_a), 1)  # the others decide where these say nothing
    stream_a, stream_b = _common_streams(work_a.stream, work_b.stream, in_a, in_b, weight)
    early_a, early_b = _early_pairs(a, b, place_a, place_b, stream_a, stream_b)
    is_alike = (stream_a[in_a] == stream_b[in_b]) & (_category(a)[in_a] == _category(b)[in_b])
    in_a, in_b = np.r_[early_a, in_a[is_alike]], np.r_[early_b, in_b[is_alike]]
    only_a, only_b = absent(in_a, len(work_a)), absent(in_b, len(work_b))
    unit_a = np.r_[in_a, only_a, np.full(len(only_b), -1)]
    unit_b = np.r_[in_b, np.full(len(only_a), -1), only_b]
    is_in_a = unit_a >= 0
    place, stream = (
        np.where(is_in_a, place_a[unit_a], place_b[unit_b]),
        np.where(is_in_a, stream_a[unit_a], stream_b[unit_b]),
    )
    sequence = np.where(is_in_a, np.r_[sequence_a, 0][unit_a], np.r_[sequence_b, 0][unit_b])
    early = place < 0
    start = np.where(
        is_in_a, np.r_[work_a.start - a.time_ns[0], 0][unit_a], np.r_[work_b.start - b.time_ns[0], 0][unit_b]
    )
    sequence[early] = _early_order(start[early], stream[early], unit_a[early], unit_b[early])
    order = np.lexsort((unit_b, ~is_in_a, sequence, place))
    unit_a, unit_b, place, stream = unit_a[order], unit_b[order], place[order], stream[order]
    has_call = np.where(unit_a >= 0, np.r_[work_a.linked, False][unit_a], np.r_[work_b.linked, False][unit_b])
    return WorkPairs(
        unit_a,
        unit_b,
        place,
        stream,
        _before(stream),
        has_call,
        inverse(unit_a, len(work_a)),
        inverse(unit_b, len(work_b)),
    )


def paired_with_itself(line: Anchors) -> WorkPairs:
    """Return the device work of one recording in launch order, which is both sides."""
    work, place, every = device_work(line.trace), line.launch, np.arange(len(line.launch))
    stream = np.searchsorted(sorted_unique(work.stream), work.stream)
    sequence, early = every.copy(), np.flatnonzero(place < 0)
    sequence[early] = _early_order(work.start[early], stream[early], early, early)
    units = np.lexsort((sequence, place))
    unit_of = inverse(units, len(units))
    before = _before(stream[units])
    return WorkPairs(units, units, place[units], stream[units], before, work.linked[units], unit_of, unit_of)


def _category(line: HostLine) -> NDArray[np.int8]:
    return line.trace.events.category[device_work(line.trace).rows]


def _before(stream: NDArray[np.int64]) -> NDArray[np.int64]:
    before = np.full(len(stream), -1)
    order = np.argsort(stream, kind="stable")
    same = stream[order[1:]] == stream[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _by_call(
    a: HostLine, b: HostLine, place_a: NDArray[np.int64], place_b: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (paired work of A, of B, the order of each work of A within its call, of B)."""
    order_a, order_b = (np.argsort(place, kind="stable") for place in (place_a, place_b))
    order_a, order_b = order_a[place_a[order_a] >= 0], order_b[place_b[order_b] >= 0]
    size = 1 + max(int(place_a.max(initial=0)), int(place_b.max(initial=0)))
    num_a, num_b = (
        np.bincount(place[order], minlength=size) for place, order in ((place_a, order_a), (place_b, order_b))
    )
    first_a, first_b = (np.cumsum(num) - num for num in (num_a, num_b))
    rank_a, rank_b = (
        np.arange(len(order)) - first[place[order]]
        for order, first, place in ((order_a, first_a, place_a), (order_b, first_b, place_b))
    )
    sequence_a, sequence_b = np.zeros(len(place_a), np.int64), np.zeros(len(place_b), np.int64)
    sequence_a[order_a], sequence_b[order_b] = 3 * rank_a, 3 * rank_b
    same_number = (num_a == num_b) & (num_a > 0)
    chosen_a, chosen_b = order_a[same_number[place_a[order_a]]], order_b[same_number[place_b[order_b]]]
    differs = np.zeros(size, np.bool_)
    differs[place_a[chosen_a][a.names[chosen_a] != b.names[chosen_b]]] = True
    differs &= num_a > 1
    straight = ~differs[place_a[chosen_a]]
    pairs_a, pairs_b = [chosen_a[straight]], [chosen_b[straight]]
    for place in np.flatnonzero(differs | ((num_a != num_b) & (num_a > 0) & (num_b > 0))).tolist():
        of_a, of_b = (
            order[first[place] : first[place] + num[place]]
            for order, first, num in ((order_a, first_a, num_a), (order_b, first_b, num_b))
        )
        in_a, in_b = common_subsequence(a.names[of_a], b.names[of_b])
        if len(in_a) == 0 and len(of_a) == len(of_b):
            in_a = in_b = np.arange(len(of_a))
        pairs_a.append(of_a[in_a])
        pairs_b.append(of_b[in_b])
        sequence_a[of_a], sequence_b[of_b] = _merged_order(in_a, in_b, len(of_a), len(of_b))
    return np.concatenate(pairs_a), np.concatenate(pairs_b), sequence_a, sequence_b


def _merged_order(
    in_a: NDArray[np.int64], in_b: NDArray[np.int64], size_a: int, size_b: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of both sides' elements: in each gap between pairs first A's, then B's."""
    step = 2 * (size_a + size_b) + 2
    all_a, all_b = np.arange(size_a), np.arange(size_b)
    gap_a, gap_b = np.searchsorted(in_a, all_a), np.searchsorted(in_b, all_b)
    order_a, order_b = gap_a * step + all_a, gap_b * step + size_a + all_b
    order_a[in_a] = order_b[in_b] = np.arange(len(in_a)) * step + step - 1
    return order_a, order_b


def _common_streams(
    all_a: NDArray[np.int64],
    all_b: NDArray[np.int64],
    in_a: NDArray[np.int64],
    in_b: NDArray[np.int64],
    weight: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the common number of the stream of each work of A and of B.

    Streams that share most pairs, by `weight`, are one; those that share none are one if they have the same number.
    """
    groups_a, groups_b = group([all_a]), group([all_b])
    (streams_a, number_a), (streams_b, number_b) = ((of.keys[:, 0], of.group_ids) for of in (groups_a, groups_b))
    common = len(streams_a) + np.arange(len(streams_b))
    shared = group([number_a[in_a], number_b[in_b]])
    pairs, counts = shared.keys, np.bincount(shared.group_ids, weights=weight, minlength=len(shared.keys))
    _, same_a, same_b = np.intersect1d(streams_a, streams_b, assume_unique=True, return_indices=True)
    used: set[int] = set()
    for stream_a, stream_b in (
        *pairs[np.argsort(-counts, kind="stable")].tolist(),
        *zip(same_a.tolist(), same_b.tolist(), strict=True),
    ):
        if common[stream_b] >= len(streams_a) and stream_a not in used:
            common[stream_b] = stream_a
            used.add(stream_a)
    return number_a, common[number_b]


def _early_pairs(
    a: HostLine,
    b: HostLine,
    place_a: NDArray[np.int64],
    place_b: NDArray[np.int64],
    stream_a: NDArray[np.int64],
    stream_b: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs of work launched before the window, stream by stream."""
    pairs_a, pairs_b = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number in sorted_unique(stream_a[place_a < 0]).tolist():
        of_a = np.flatnonzero((place_a < 0) & (stream_a == number))
        of_b = np.flatnonzero((place_b < 0) & (stream_b == number))
        in_a, in_b = common_subsequence(a.names[of_a], b.names[of_b])
        pairs_a.append(of_a[in_a])
        pairs_b.append(of_b[in_b])
    return np.concatenate(pairs_a), np.concatenate(pairs_b)


def _early_order(
    start: NDArray[np.int64], stream: NDArray[np.int64], unit_a: NDArray[np.int64], unit_b: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the order of work launched before the window: by time over all streams, each stream in its own order."""
    rank, place = np.zeros(len(start), np.int64), np.zeros(len(start), np.int64)
    only = np.where(unit_b < 0, 0, np.where(unit_a < 0, 1, 2))
    for number in sorted_unique(stream).tolist():
        on_stream = np.flatnonzero(stream == number)
        in_a, in_b = unit_a[on_stream], unit_b[on_stream]
        paired = np.sort(in_a[(in_a >= 0) & (in_b >= 0)]), np.sort(in_b[(in_a >= 0) & (in_b >= 0)])
        gap = np.where(in_a >= 0, np.searchsorted(paired[0], in_a), np.searchsorted(paired[1], in_b))
        order = on_stream[np.lexsort((np.maximum(in_a, in_b), only[on_stream], gap))]
        rank[order], place[order] = np.maximum.accumulate(start[order]), np.arange(len(order))
    sequence = np.empty(len(start), np.int64)
    sequence[np.lexsort((stream, place, rank))] = np.arange(len(start))
    return sequence
