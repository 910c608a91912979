"""Which calls of different ranks are one collective.

By (group, sequence number) where every call of the group has one. Else by order within (group, step), as the host
issued them: from the start of a step, but in the step that was running when a window opened from its end. Traces
without steps are shifted against each other to where all that both hold agrees.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from traceq.facts.ranks.job_collectives import Issued

__all__ = ["Instances", "match"]

_MOST_SHIFT = 300
_AS_GOOD_NS = 50_000


@dataclass(frozen=True, slots=True, eq=False)
class Instances:
    """I collectives by (group, step, place) among R ranks.

    `group` int64[I]; `numbered` bool[I]: `place` is a sequence number and `step` -1, else the n-th in the step from 0;
    `call` int64[I, R] into Issued, -1 where a rank has none.
    """

    group: NDArray[np.int64]
    numbered: NDArray[np.bool_]
    step: NDArray[np.int64]
    place: NDArray[np.int64]
    call: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.group)

    def some(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Instances:
        """Some of them."""
        return Instances(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})


def match(issued: Issued) -> Instances:
    """All collectives that at least one rank issued."""
    numbered = _numbered_groups(issued)[issued.group]
    place, follows = np.where(numbered, issued.called.sequence, 0), np.zeros(len(issued), np.int64)
    step = np.where(numbered, -1, issued.called.step)
    follows[numbered] = _order(issued, numbered, issued.group, issued.rank, issued.called.sequence)[0]
    matched = np.ones(len(issued), np.bool_)
    for marked in (True, False):
        mine = ~numbered & (issued.marked[issued.rank] == marked)
        matched[mine], place[mine] = _by_step(issued, mine) if marked else _by_shift(issued, mine)
    keys = np.column_stack([issued.group, step, place, follows])[matched]
    keys, instance = np.unique(keys, axis=0, return_inverse=True)
    call = np.full((len(keys), len(issued.ranks)), -1)
    call[instance.reshape(-1), issued.rank[matched]] = np.flatnonzero(matched)
    return Instances(keys[:, 0], _numbered_groups(issued)[keys[:, 0]], keys[:, 1], keys[:, 2], call)


def _numbered_groups(issued: Issued) -> NDArray[np.bool_]:
    """bool[G]: every call has a sequence number."""
    numbered = np.ones(len(issued.groups), np.bool_)
    numbered[issued.group[issued.called.sequence < 0]] = False
    return numbered


def _order(
    issued: Issued, mine: NDArray[np.bool_], *keys: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(place among the calls that agree in the keys, by time of issue; number of those calls), of the chosen calls."""
    chosen = np.flatnonzero(mine)
    if len(chosen) == 0:
        return chosen, chosen
    columns = [key[chosen] for key in keys]
    order = np.lexsort((chosen, issued.called.at[chosen], *columns))
    table = np.column_stack(columns)[order]
    opens = np.flatnonzero(np.r_[True, (table[1:] != table[:-1]).any(axis=1)])
    size = np.diff(np.r_[opens, len(order)])
    place, count = np.empty(len(chosen), np.int64), np.empty(len(chosen), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(opens, size)
    count[order] = np.repeat(size, size)
    return place, count


def _by_step(issued: Issued, mine: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """(has a place, place in its step): from the step's start, or its end where the window opened within the step."""
    place, count = _order(issued, mine, issued.group, issued.rank, issued.called.step)
    rank, step = issued.rank[mine], issued.called.step[mine]
    opened_within = step < issued.whole[rank, 0]
    is_whole = ~opened_within & (step < issued.whole[rank, 1])
    _, segment = np.unique(np.column_stack([issued.group[mine], step]), axis=0, return_inverse=True)
    segment = segment.reshape(-1)
    length = np.full(len(place), -1)
    np.maximum.at(length, segment[is_whole], count[is_whole])
    length = length[segment]
    place = np.where(opened_within, place + length - count, place)
    return ~opened_within | ((length >= 0) & (place >= 0)), place


def _by_shift(issued: Issued, mine: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """(has a place, place) in windows without steps; none where others have steps, for nothing says which is which."""
    place, _ = _order(issued, mine, issued.group, issued.rank)
    if issued.marked.any():
        return np.zeros(len(place), np.bool_), place
    chosen = np.flatnonzero(mine)
    for group in range(len(issued.groups)):
        ranks = np.flatnonzero(issued.member[group])
        calls = [chosen[(issued.group[chosen] == group) & (issued.rank[chosen] == rank)] for rank in ranks.tolist()]
        calls = [own[np.argsort(issued.called.at[own], kind="stable")] for own in calls]
        longest = max(calls, key=len, default=chosen[:0])
        for own in calls:
            place[np.searchsorted(chosen, own)] += _shift(issued, longest, own) if len(own) else 0
        in_group = issued.group[chosen] == group
        place[in_group] -= place[in_group].min(initial=0)
    return np.ones(len(place), np.bool_), place


def _shift(issued: Issued, a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """How many calls later than a's first b's first comes: where at least half of b meets calls of a and all agree.

    Among several shifts the one at which both end at the same distance all along, whatever the clocks say; 0 if it is
    about as good, and 0 where none fits.
    """
    least = max(1, (len(b) + 1) // 2)
    found: dict[int, float] = {}
    shifts = range(max(least - len(b), -_MOST_SHIFT), min(len(a) - least, _MOST_SHIFT) + 1)
    for shift in sorted(shifts, key=lambda shift: (abs(shift), shift)):
        ours, theirs = a[max(shift, 0) : shift + len(b)], b[max(-shift, 0) : len(a) - shift]
        columns = (issued.called.name, issued.dtype, issued.called.elements)
        if all((column[ours] == column[theirs]).all() for column in columns):
            found[shift] = _spread(issued.called.end[ours] - issued.called.end[theirs])
            if shift == 0 and found[shift] <= _AS_GOOD_NS:
                break
    best = min(found.values(), default=0.0)
    good = [shift for shift, spread in found.items() if spread <= 2 * best + _AS_GOOD_NS]
    return next(iter(good), 0)


def _spread(values: NDArray[np.int64]) -> float:
    """Median distance from the median."""
    return float(np.median(np.abs(values - np.median(values))))
