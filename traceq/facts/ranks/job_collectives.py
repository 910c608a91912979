"""Collectives of all ranks in one table, with the columns to compare across ranks, from traces or flight recorders.

Times are absolute (`base_time_ns` + ts), by each rank's clock. Point-to-point messages are left out: a send on one rank
is a recv on another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import COLLECTIVE_NAMES, name_number
from traceq.facts.comm.rank_collectives import POINT_TO_POINT, SAME_EVERYWHERE, CollectiveColumns, RankCalls, concat
from traceq.facts.ranks.rank_outline import Outline
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Flight

_ALL_RANKS = re.compile(r"^\[\d+(, ?\d+)*\]$")


@frozen(eq=False)
class JobCollectives:
    """C calls of R ranks, sorted by (rank, time of issue), among G groups.

    int64[C]: `rank` into `ranks`; `group`, `dtype`, `phase` into the texts `groups`, `dtypes`, `phases`, -1 = absent;
    the other columns in `columns`. `whole` int64[R, 2]: the steps [from, to) that each window covers entirely; `marked`
    bool[R]: has steps; `member` bool[G, R]: belongs to the group.
    """

    ranks: tuple[int, ...]
    groups: tuple[str, ...]
    dtypes: tuple[str, ...]
    phases: tuple[str, ...]
    rank: NDArray[np.int64]
    group: NDArray[np.int64]
    dtype: NDArray[np.int64]
    phase: NDArray[np.int64]
    columns: CollectiveColumns
    whole: NDArray[np.int64]
    marked: NDArray[np.bool_]
    member: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def nth(self) -> NDArray[np.int64]:
        """int64[C]: index of each call among the calls of its rank."""
        nth: NDArray[np.int64] = np.arange(len(self)) - np.searchsorted(self.rank, self.rank)
        return nth

    @property
    def active(self) -> NDArray[np.bool_]:
        """bool[G, R]: issued a call in the group."""
        active = np.zeros_like(self.member)
        active[self.group, self.rank] = True
        return active


class _Texts(dict[str, int]):
    """Texts -> their numbers, in order of first use."""

    def number(self, text: str) -> int:
        """Return the number of a text, a new one if needed; -1 for an empty text."""
        return self.setdefault(text, len(self)) if text else -1


def issued_by_ranks(ranks: Sequence[Outline], calls: Sequence[RankCalls]) -> JobCollectives:
    """Return the calls of several ranks; a rank whose calls come from another kind of row is left out."""
    levels = Counter(part.level for part in calls if part.level)
    level = max(sorted(levels), key=lambda name: levels[name], default="")
    compared = [(rank, part) for rank, part in zip(ranks, calls, strict=True) if part.level in (level, "")]
    parts = [part for _, part in compared]
    columns = CollectiveColumns.of_ranks([part.columns for part in parts])
    if any(part.has_gloo_names for part in parts):
        scattered = columns.name == COLLECTIVE_NAMES.index("reduce_scatter")
        name = np.where(scattered, COLLECTIVE_NAMES.index("all_reduce"), columns.name)
        columns = replace(columns, name=name, elements=np.full(len(columns), -1))
    groups, dtypes, names = _Texts(), _Texts(), _Texts()
    rank_index = concat([np.full(len(part.columns), index) for index, part in enumerate(parts)])
    group = concat([_group_numbers(part, groups) for part in parts])
    all_steps = [rank.steps for rank, _ in compared]
    numbers = tuple(rank.rank for rank, _ in compared)
    return JobCollectives(
        ranks=numbers,
        groups=tuple(name or members for name, _, members in (text.partition("\t") for text in groups)),
        rank=rank_index,
        group=group,
        dtype=concat([_text_numbers(dtypes, part.texts, part.dtype) for part in parts]),
        phase=concat([_text_numbers(names, part.phases, part.phase) for part in parts]),
        columns=columns,
        dtypes=tuple(dtypes),
        phases=tuple(names),
        whole=np.array([s.number[[0, -1]] if s.marked else [1, 0] for s in all_steps], np.int64).reshape(-1, 2),
        marked=np.array([s.marked for s in all_steps], np.bool_),
        member=_members(groups, numbers, group, rank_index),
    )


def issued_by_flights(flights: Sequence[Flight]) -> JobCollectives:
    """Return the collectives of flight recorders: with sequence numbers, without steps or durations."""
    groups, dtypes = _Texts(), _Texts()
    numbers = {name: name_number(name) for flight in flights for name in set(flight.name)}
    rank = concat([np.full(len(flight.name), index) for index, flight in enumerate(flights)])
    group = _int_array(
        groups.number(f"{name}\t{members}")
        for flight in flights
        for name, members in zip(flight.group, flight.members, strict=True)
    )
    name = _int_array(numbers[text] for flight in flights for text in flight.name)
    elements = concat([flight.elements for flight in flights])
    absent = np.full(len(rank), -1)
    dtype = _int_array(dtypes.number(text) for flight in flights for text in flight.dtype)
    moves = (name >= 0) & ~np.isin(name, POINT_TO_POINT)
    columns = CollectiveColumns(
        name=name,
        elements=np.where(np.isin(name, SAME_EVERYWHERE), elements, -1),
        size=absent,
        group_size=absent,
        sequence=concat([flight.sequence for flight in flights]),
        step=absent,
        issued_ns=concat([flight.created_ns for flight in flights]),
        start=absent,
        end=absent,
        row=concat([np.arange(len(flight.name)) for flight in flights]),
    )
    ranks = tuple(flight.rank for flight in flights)
    return JobCollectives(
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
        columns=columns.select(moves),
    )


def _group_numbers(part: RankCalls, groups: _Texts) -> NDArray[np.int64]:
    """Return the number of each call's group; groups of one name with different members are distinct."""
    strings = (*part.texts, "")
    pairs = group([part.group, part.members])
    texts = (f"{strings[name]}\t{strings[members]}" for name, members in pairs.keys.tolist())
    numbers = _int_array(groups.number(text) for text in texts)
    return numbers[pairs.group_ids] if len(numbers) else part.group


def _members(
    groups: _Texts, ranks: tuple[int, ...], group: NDArray[np.int64], rank: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return bool[G, R]: ranks that the group's text lists, or that issued a call in it."""
    member = np.zeros((len(groups), len(ranks)), np.bool_)
    for text, number in groups.items():
        members = text.partition("\t")[2]
        if _ALL_RANKS.match(members):
            member[number] = np.isin(ranks, [int(rank_text) for rank_text in members[1:-1].split(",")])
    member[group, rank] = True
    return member


def _text_numbers(texts: _Texts, strings: Sequence[str], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers in `texts` of ids into `strings`; -1 stays -1."""
    unique_ids, inverse = np.unique(ids, return_inverse=True)
    numbers = _int_array(texts.number(strings[number]) if number >= 0 else -1 for number in unique_ids.tolist())
    return numbers[inverse] if len(ids) else ids


def _int_array(values: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(values), np.int64)
