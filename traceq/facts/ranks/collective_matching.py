"""Matching of calls: which calls of different ranks are the same collective.

Calls match by (group, sequence number) where every call of the group has one. Else they match by order of issue within
(group, step), counted from the start of a step, or from its end in the step that was running when a window opened.
Traces without steps are shifted against each other until all calls that both contain agree, and none ends on one rank
before it starts on another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.rank_collectives import BARRIER_LIKE
from traceq.facts.ranks.job_collectives import JobCollectives
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import select_rows

_MAX_SHIFT = 300
_TOLERANCE_NS = 50_000
_LEAST, _MOST = -(2**62), 2**62


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
        return select_rows(self, selected)


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


@frozen
class _Fit:
    """A shift at which all pairs agree: whether they can be the same collectives, and how constant their ends are.

    `on_one_clock`: all pairs overlap by the clocks as they are; `possible`: by clocks that are some constant apart;
    `in_phase`: no pair is in two phases; `deviation` ns of the distances between their ends.
    """

    shift: int
    on_one_clock: bool
    possible: bool
    in_phase: bool
    deviation: float


def _shift(issued: JobCollectives, a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Return how many calls after a's first b's first comes: at least half of b must overlap a, and all pairs agree.

    No rank leaves a collective before all have entered it: shifts at which all pairs overlap, by clocks some constant
    apart, exclude others. If as many calls are on both sides, and 0 is not excluded, it is 0. Of several other shifts
    it is the one with the most constant distance between the ends of the pairs; of those that are about as good one by
    which they overlap by the clocks as they are, then the nearest to 0; 0 if none fits.
    """
    fits = _preferred(_preferred(_fits(issued, a, b), "possible"), "in_phase")
    if len(a) == len(b) and any(fit.shift == 0 for fit in fits):
        return 0
    best = min((fit.deviation for fit in fits), default=0.0)
    good = [fit for fit in fits if fit.deviation <= 2 * best + _TOLERANCE_NS]
    return next((fit.shift for fit in _preferred(good, "on_one_clock")), 0)


def _preferred(fits: list[_Fit], name: str) -> list[_Fit]:
    """Return those for which that holds; all if it holds for none."""
    return [fit for fit in fits if getattr(fit, name)] or fits


def _fits(issued: JobCollectives, a: NDArray[np.int64], b: NDArray[np.int64]) -> list[_Fit]:
    """Return the shifts at which names, dtypes and elements of all pairs agree, those nearest to 0 first."""
    least, fits = max(1, (len(b) + 1) // 2), list[_Fit]()
    compared = issued.columns.name, issued.dtype, issued.columns.elements
    shifts = range(max(least - len(b), -_MAX_SHIFT), min(len(a) - least, _MAX_SHIFT) + 1)
    for shift in sorted(shifts, key=lambda shift: (abs(shift), shift)):
        pairs = a[max(shift, 0) : shift + len(b)], b[max(-shift, 0) : len(a) - shift]
        if all((column[pairs[0]] == column[pairs[1]]).all() for column in compared):
            fits.append(_fit(issued, shift, *pairs))
            if shift == 0 and fits[0].on_one_clock and fits[0].in_phase and fits[0].deviation <= _TOLERANCE_NS:
                break
    return fits


def _fit(issued: JobCollectives, shift: int, a: NDArray[np.int64], b: NDArray[np.int64]) -> _Fit:
    """Return how well the pairs of calls (a, b) fit each other."""
    start, end, phase = issued.columns.start, issued.columns.end, issued.phase
    met = (start[a] >= 0) & (start[b] >= 0) & np.isin(issued.columns.name[a], BARRIER_LIKE)
    ahead = (start[a] - end[b])[met].max(initial=_LEAST), (end[a] - start[b])[met].min(initial=_MOST)
    return _Fit(
        shift,
        on_one_clock=bool(ahead[0] <= _TOLERANCE_NS and ahead[1] >= -_TOLERANCE_NS),
        possible=bool(ahead[0] - _TOLERANCE_NS <= ahead[1]),
        in_phase=bool(((phase[a] == phase[b]) | (phase[a] < 0) | (phase[b] < 0)).all()),
        deviation=_median_deviation(end[a] - end[b]),
    )


def _median_deviation(values: NDArray[np.int64]) -> float:
    """Return the median absolute deviation."""
    return float(np.median(np.abs(values - np.median(values))))
