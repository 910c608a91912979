"""The collectives of all ranks in one table, with what can be compared across ranks: by traces or flight recorders.

Times are absolute (`base_time_ns` + ts), by each rank's own clock. Point-to-point messages are left out: a send is
somebody else's recv.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collective_columns import CollectiveColumns, concat
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, name_number
from traceq.facts.comm.rank_collectives import POINT_TO_POINT, SAME_EVERYWHERE, OwnCalls
from traceq.facts.ranks.rank_outline import Outline
from traceq.model import Flight

__all__ = ["Issued", "are_of_one_job", "issued_by_flights", "issued_by_ranks"]

_WALL_CLOCK_NS = 10**18
_ONE_JOB_NS = 60 * 10**9
_ALL_RANKS = re.compile(r"^\[\d+(, ?\d+)*\]$")


@dataclass(frozen=True, slots=True, eq=False)
class Issued:
    """C calls of R ranks by (rank, time of issue), among G groups.

    int64[C]: `rank` into `ranks`; `group`, `dtype`, `phase` into the texts `groups`, `dtypes`, `phases`, -1 = absent;
    the rest in `called`. `whole` int64[R, 2]: the steps [from, to) that each window holds entirely; `marked` bool[R]:
    has steps; `member` bool[G, R]: takes part in the group.
    """

    ranks: tuple[int, ...]
    groups: tuple[str, ...]
    dtypes: tuple[str, ...]
    phases: tuple[str, ...]
    rank: NDArray[np.int64]
    group: NDArray[np.int64]
    dtype: NDArray[np.int64]
    phase: NDArray[np.int64]
    called: CollectiveColumns
    whole: NDArray[np.int64]
    marked: NDArray[np.bool_]
    member: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def nth(self) -> NDArray[np.int64]:
        """int64[C]: index of each call among its rank's own."""
        nth: NDArray[np.int64] = np.arange(len(self)) - np.searchsorted(self.rank, self.rank)
        return nth

    @property
    def active(self) -> NDArray[np.bool_]:
        """bool[G, R]: issued something in the group."""
        active = np.zeros_like(self.member)
        active[self.group, self.rank] = True
        return active


class _Texts(dict[str, int]):
    """Text -> its number in order of first sight."""

    def number(self, text: str) -> int:
        """Its number; -1 for no text."""
        return self.setdefault(text, len(self)) if text else -1


def are_of_one_job(ranks: Sequence[Outline]) -> bool:
    """Windows that are years or minutes apart by the wall clock were recorded one after the other.

    Times that count from a machine's start say nothing about this.
    """
    start, end = (np.array([rank.extent[side] + rank.base_time_ns for rank in ranks]) for side in (0, 1))
    order = np.argsort(start)
    gaps = start[order][1:] - np.maximum.accumulate(end[order])[:-1]
    return bool((start < _WALL_CLOCK_NS).any() or (gaps < _ONE_JOB_NS).all())


def issued_by_ranks(ranks: Sequence[Outline], calls: Sequence[OwnCalls]) -> Issued:
    """The calls of several ranks. A rank whose calls are known by another kind of row is left out."""
    levels = Counter(part.level for part in calls if part.level)
    level = max(sorted(levels), key=lambda name: levels[name], default="")
    both = [(rank, part) for rank, part in zip(ranks, calls, strict=True) if part.level in (level, "")]
    parts = [part for _, part in both]
    called = CollectiveColumns.of_all([part.called for part in parts])
    if any(part.is_loose for part in parts):
        scattered = called.name == COLLECTIVE_NAMES.index("reduce_scatter")
        name = np.where(scattered, COLLECTIVE_NAMES.index("all_reduce"), called.name)
        called = replace(called, name=name, elements=np.full(len(called), -1))
    groups, dtypes, names = _Texts(), _Texts(), _Texts()
    index = concat([np.full(len(part.called), at) for at, part in enumerate(parts)])
    group = concat([_groups(part, groups) for part in parts])
    known = [rank.steps for rank, _ in both]
    numbers = tuple(rank.rank for rank, _ in both)
    return Issued(
        ranks=numbers,
        groups=tuple(name or members for name, _, members in (text.partition("\t") for text in groups)),
        rank=index,
        group=group,
        dtype=concat([_numbers(dtypes, part.texts, part.dtype) for part in parts]),
        phase=concat([_numbers(names, part.phases, part.phase) for part in parts]),
        called=called,
        dtypes=tuple(dtypes),
        phases=tuple(names),
        whole=np.array([s.number[[0, -1]] if s.marked else np.array([1, 0]) for s in known], np.int64).reshape(-1, 2),
        marked=np.array([s.marked for s in known], np.bool_),
        member=_members(groups, numbers, group, index),
    )


def issued_by_flights(flights: Sequence[Flight]) -> Issued:
    """The collectives of several ranks' flight recorders, with their sequence numbers; without steps or durations."""
    groups, dtypes = _Texts(), _Texts()
    known = {name: name_number(name) for flight in flights for name in set(flight.name)}
    rank = concat([np.full(len(flight.name), index) for index, flight in enumerate(flights)])
    group = _ints(
        groups.number(f"{name}\t{members}")
        for flight in flights
        for name, members in zip(flight.group, flight.members, strict=True)
    )
    name = _ints(known[text] for flight in flights for text in flight.name)
    elements = concat([flight.elements for flight in flights])
    absent = np.full(len(rank), -1)
    dtype = _ints(dtypes.number(text) for flight in flights for text in flight.dtype)
    moves = (name >= 0) & ~np.isin(name, POINT_TO_POINT)
    called = CollectiveColumns(
        name=name,
        elements=np.where(np.isin(name, SAME_EVERYWHERE), elements, -1),
        size=absent,
        group_size=absent,
        sequence=concat([flight.sequence for flight in flights]),
        step=absent,
        at=concat([flight.created_ns for flight in flights]),
        start=absent,
        end=absent,
        row=concat([np.arange(len(flight.name)) for flight in flights]),
    )
    ranks = tuple(flight.rank for flight in flights)
    return Issued(
        ranks=ranks,
        groups=tuple(text.partition("\t")[0] for text in groups),
        dtypes=tuple(dtypes),
        phases=(),
        whole=np.tile(np.array([1, 0]), (len(flights), 1)),
        marked=np.zeros(len(flights), np.bool_),
        member=_members(groups, ranks, group, rank),
        rank=rank[moves],
        group=group[moves],
        dtype=dtype[moves],
        phase=absent[moves],
        called=called.some(moves),
    )


def _groups(part: OwnCalls, groups: _Texts) -> NDArray[np.int64]:
    """Number of each call's group: ranks of one name but other members are another group."""
    strings = (*part.texts, "")
    pairs, inverse = np.unique(np.column_stack([part.group, part.members]), axis=0, return_inverse=True)
    numbers = _ints(groups.number(f"{strings[name]}\t{strings[members]}") for name, members in pairs.tolist())
    return numbers[inverse.reshape(-1)] if len(numbers) else part.group


def _members(
    groups: _Texts, ranks: tuple[int, ...], group: NDArray[np.int64], rank: NDArray[np.int64]
) -> NDArray[np.bool_]:
    member = np.zeros((len(groups), len(ranks)), np.bool_)
    for text, number in groups.items():
        told = text.partition("\t")[2]
        if _ALL_RANKS.match(told):
            member[number] = np.isin(ranks, [int(one) for one in told[1:-1].split(",")])
    member[group, rank] = True
    return member


def _numbers(known: _Texts, strings: Sequence[str], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    distinct, inverse = np.unique(ids, return_inverse=True)
    numbers = _ints(known.number(strings[text]) if text >= 0 else -1 for text in distinct.tolist())
    return numbers[inverse] if len(ids) else ids


def _ints(values: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(values), np.int64)
