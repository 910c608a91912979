"""Matching of calls: which calls of different ranks are the same collective.

Calls match by (group, sequence number) where every call of the group has one. Else they match by order of issue within
(group, step), counted from the start of a step, or from its end in the step that was running when a window opened.
Traces without steps are shifted against each other until all calls that both contain agree.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from traceq.facts.ranks.job_collectives import JobCollectives
from traceq.frozen import frozen
from traceq.grouping import group

__all__ = ["Instances", "match_collectives"]

_MAX_SHIFT = 300
_TOLERANCE_NS = 50_000


@frozen(eq=False)
class Instances:
    """I collectives among R ranks, by (group, step, place).

    `group` int64[I]; `numbered` bool[I]: `place` is a sequence number and `step` -1, else `place` is the position in
    the step from 0; `call` int64[I, R] into JobCollectives, -1 where a rank has none.
    """

    group: NDArray[np.int64]
    numbered: NDArray[np.bool_]
    step: NDArray[np.int64]
    place: NDArray[np.int64]
    call: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.group)

    def select(self, selected: NDArray[np.bool_] | NDArray[np.int64]) -> Instances:
        """Return the selected collectives."""
        return Instances(**{field.name: getattr(self, field.name)[selected] for field in fields(self)})


def match_collectives(issued: JobCollectives) -> Instances:
    """Return all collectives that at least one rank issued."""
    numbered = _numbered_groups(issued)[issued.group]
    place, repeat = np.where(numbered, issued.columns.sequence, 0), np.zeros(len(issued), np.int64)
    step = np.where(numbered, -1, issued.columns.step)
    repeat[numbered] = _position(issued, numbered, issued.group, issued.rank, issued.columns.sequence)[0]
    matched = np.ones(len(issued), np.bool_)
    for marked in (True, False):
        mask = ~numbered & (issued.marked[issued.rank] == marked)
        matched[mask], place[mask] = _position_in_step(issued, mask) if marked else _position_by_shift(issued, mask)
    instances = group([column[matched] for column in (issued.group, step, place, repeat)])
    keys = instances.keys
    call = np.full((len(keys), len(issued.ranks)), -1)
    call[instances.group_ids, issued.rank[matched]] = np.flatnonzero(matched)
    return Instances(keys[:, 0], _numbered_groups(issued)[keys[:, 0]], keys[:, 1], keys[:, 2], call)


def _numbered_groups(issued: JobCollectives) -> NDArray[np.bool_]:
    """Return bool[G]: every call of the group has a sequence number."""
    numbered = np.ones(len(issued.groups), np.bool_)
    numbered[issued.group[issued.columns.sequence < 0]] = False
    return numbered


def _position(
    issued: JobCollectives, mask: NDArray[np.bool_], *keys: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (position by time of issue among the masked calls with equal keys; number of those calls)."""
    chosen = np.flatnonzero(mask)
    if len(chosen) == 0:
        return chosen, chosen
    columns = [key[chosen] for key in keys]
    order = np.lexsort((chosen, issued.columns.issued_ns[chosen], *columns))
    table = np.column_stack(columns)[order]
    first = np.flatnonzero(np.r_[True, (table[1:] != table[:-1]).any(axis=1)])
    size = np.diff(np.r_[first, len(order)])
    place, count = np.empty(len(chosen), np.int64), np.empty(len(chosen), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(first, size)
    count[order] = np.repeat(size, size)
    return place, count


def _position_in_step(issued: JobCollectives, mask: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return (has a position, position in its step), counted from the end of a step that began before the window."""
    place, count = _position(issued, mask, issued.group, issued.rank, issued.columns.step)
    rank, step = issued.rank[mask], issued.columns.step[mask]
    is_partial = step < issued.whole[rank, 0]
    is_whole = ~is_partial & (step < issued.whole[rank, 1])
    segment = group([issued.group[mask], step]).group_ids
    length = np.full(len(place), -1)
    np.maximum.at(length, segment[is_whole], count[is_whole])
    length = length[segment]
    place = np.where(is_partial, place + length - count, place)
    return ~is_partial | ((length >= 0) & (place >= 0)), place


def _position_by_shift(issued: JobCollectives, mask: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return (has a position, position) in windows without steps; none if other ranks have steps to compare with."""
    place, _ = _position(issued, mask, issued.group, issued.rank)
    if issued.marked.any():
        return np.zeros(len(place), np.bool_), place
    chosen = np.flatnonzero(mask)
    for number in range(len(issued.groups)):
        ranks = np.flatnonzero(issued.member[number])
        calls = [chosen[(issued.group[chosen] == number) & (issued.rank[chosen] == rank)] for rank in ranks.tolist()]
        calls = [rank_calls[np.argsort(issued.columns.issued_ns[rank_calls], kind="stable")] for rank_calls in calls]
        longest = max(calls, key=len, default=chosen[:0])
        for rank_calls in calls:
            place[np.searchsorted(chosen, rank_calls)] += _shift(issued, longest, rank_calls) if len(rank_calls) else 0
        in_group = issued.group[chosen] == number
        place[in_group] -= place[in_group].min(initial=0)
    return np.ones(len(place), np.bool_), place


def _shift(issued: JobCollectives, a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Return how many calls after a's first b's first comes: at least half of b must overlap a, and all pairs agree.

    Of several such shifts it is the one with the most constant distance between the ends of the pairs, whatever the
    clock offset; 0 if that is about as good, or if none fits.
    """
    least = max(1, (len(b) + 1) // 2)
    deviations: dict[int, float] = {}
    shifts = range(max(least - len(b), -_MAX_SHIFT), min(len(a) - least, _MAX_SHIFT) + 1)
    for shift in sorted(shifts, key=lambda shift: (abs(shift), shift)):
        a_calls, b_calls = a[max(shift, 0) : shift + len(b)], b[max(-shift, 0) : len(a) - shift]
        columns = (issued.columns.name, issued.dtype, issued.columns.elements)
        if all((column[a_calls] == column[b_calls]).all() for column in columns):
            deviations[shift] = _median_deviation(issued.columns.end[a_calls] - issued.columns.end[b_calls])
            if shift == 0 and deviations[shift] <= _TOLERANCE_NS:
                break
    best = min(deviations.values(), default=0.0)
    good_shifts = [shift for shift, deviation in deviations.items() if deviation <= 2 * best + _TOLERANCE_NS]
    return next(iter(good_shifts), 0)


def _median_deviation(values: NDArray[np.int64]) -> float:
    """Return the median absolute deviation."""
    return float(np.median(np.abs(values - np.median(values))))
