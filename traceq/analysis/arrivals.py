"""Which collective never ended, and who never arrived at it? By the dumps that ranks left when the job stood still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceq.facts.comm.collectives import COLLECTIVE_NAMES, name_number
from traceq.facts.ranks.job import Job
from traceq.model import Flight, Trace
from traceq.report import Cell, Column, Finding, Report, Table
from traceq.units import Unit, format_ranks

POSITION = 57

_COLUMNS = (
    Column("key", "key"),
    Column("group", "group"),
    Column("sequence", "sequence", Unit.COUNT),
    Column("rank", "rank", Unit.COUNT),
    Column("state", "state"),
    Column("name", "collective"),
    Column("dtype", "dtype"),
    Column("elements", "elements", Unit.COUNT),
    Column("line", "line"),
)
_VIEW = ("group", "sequence", "rank", "state", "name", "dtype", "elements", "line")
_NEVER, _NO_DUMP = "never arrived", "no dump"
_WORDS = {
    _NEVER: "never arrived",
    _NO_DUMP: "left no dump",
    "scheduled": "issued it, and did not start it",
    "started": "wait in it",
    "completed": "completed it",
}


@dataclass(frozen=True, slots=True)
class _Rank:
    """How far one rank came with a collective, and the entry of it, or of the last before, into its Flight; -1 none."""

    rank: int
    state: str
    flight: Flight | None
    entry: int

    def cells(self, group: str, sequence: int) -> tuple[Cell, ...]:
        what: tuple[Cell, ...] = (None, None, None, "")
        if self.flight is not None and self.entry >= 0:
            elements = int(self.flight.elements[self.entry])
            what = (self.name, self.flight.dtype[self.entry] or None, elements if elements >= 0 else None, self.line)
        return (f"{group}|{sequence}|{self.rank}", group, sequence, self.rank, self.state, *what)

    @property
    def line(self) -> str:
        return self.flight.line[self.entry] if self.flight is not None and self.entry >= 0 else ""

    @property
    def name(self) -> str:
        """What the entry is called: a barrier moves no data and is a name of its own."""
        told = self.flight.name[self.entry] if self.flight is not None and self.entry >= 0 else ""
        number = name_number(told)
        return COLLECTIVE_NAMES[number] if number >= 0 else told.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class _Stuck:
    """The first collective of a group that some rank has not completed; `at` ns, when it was first issued."""

    group: str
    sequence: int
    at: int
    ranks: tuple[_Rank, ...]


def summarize(trace: Trace) -> None:
    """Nothing: a profiled window does not tell who is missing."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """The first collective of each group that did not end everywhere; nothing for parts of a recording that went on."""
    stuck = _all_stuck([flight for flight in job.flights if not flight.is_window])
    rows = tuple(rank.cells(one.group, one.sequence) for one in stuck for rank in one.ranks)
    table = Table("arrivals", "Arrivals", _COLUMNS, rows)
    keys = [column.key for column in _COLUMNS]
    at = [keys.index(key) for key in _VIEW]
    note = "Of a rank that never arrived the last that it issued before."
    title = "Collectives that did not end"
    view = Table("arrivals", title, tuple(_COLUMNS[n] for n in at), tuple(_picked(row, at) for row in rows), note=note)
    findings = tuple(_finding(one) for one in stuck)
    return Report("arrivals", (table,), (view,) if rows else (), findings)


def _picked(row: tuple[Cell, ...], at: Sequence[int]) -> tuple[Cell, ...]:
    return tuple(row[index] for index in at)


def _all_stuck(flights: Sequence[Flight]) -> list[_Stuck]:
    """By the time at which they were issued first: what came before holds up what came after."""
    groups = dict.fromkeys(key for flight in flights for key in zip(flight.group, flight.members, strict=True))
    found = [_stuck(flights, group, members) for group, members in groups]
    return sorted((one for one in found if one is not None), key=lambda one: one.at)


def _stuck(flights: Sequence[Flight], group: str, members: str) -> _Stuck | None:
    """The first entry of a group that a rank has not completed; None where all that is noted ended."""
    entries = {flight.rank: _entries(flight, group, members) for flight in flights}
    of_rank = {flight.rank: flight for flight in flights}
    pending = [
        (int(of_rank[rank].sequence[entry]), int(of_rank[rank].created_ns[entry]))
        for rank, own in entries.items()
        for entry in own.tolist()
        if of_rank[rank].state[entry] in ("scheduled", "started")
    ]
    if not pending:
        return None
    sequence = min(number for number, _ in pending)
    ranks = _members(members) or tuple(rank for rank, own in entries.items() if len(own))
    told = tuple(_arrival(rank, of_rank.get(rank), entries.get(rank), sequence) for rank in sorted(ranks))
    return _Stuck(group, sequence, min(at for number, at in pending if number == sequence), told)


def _entries(flight: Flight, group: str, members: str) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Entries of one group, by sequence."""
    both = zip(flight.group, flight.members, strict=True)
    return np.flatnonzero(np.array([own == (group, members) for own in both], np.bool_))


def _members(members: str) -> tuple[int, ...]:
    """`[0, 1]` as ranks; none where the dump does not tell."""
    told = members.strip("[]").replace(" ", "")
    return tuple(int(rank) for rank in told.split(",")) if told.replace(",", "").isdigit() else ()


def _arrival(rank: int, flight: Flight | None, own: np.ndarray[tuple[int], np.dtype[np.intp]] | None, at: int) -> _Rank:
    """How far a rank came with a sequence number; what it lacks before its first entry it had forgotten."""
    if flight is None or own is None:
        return _Rank(rank, _NO_DUMP, None, -1)
    before = own[flight.sequence[own] <= at]
    last = int(before[-1]) if len(before) else -1
    if last >= 0 and flight.sequence[last] == at:
        return _Rank(rank, flight.state[last] or "completed", flight, last)
    forgotten = bool((flight.sequence[own] > at).any())
    return _Rank(rank, "completed" if forgotten else _NEVER, flight, last)


def _finding(one: _Stuck) -> Finding:
    """Who is missing, what they did last, and where the others wait."""
    states = dict.fromkeys(rank.state for rank in sorted(one.ranks, key=lambda rank: list(_WORDS).index(rank.state)))
    told = [_words([rank for rank in one.ranks if rank.state == state]) for state in states]
    what = next((rank.name for rank in one.ranks if rank.state not in (_NEVER, _NO_DUMP)), "")
    text = f"{what} {one.sequence} of group {one.group or 'all'} did not end: {'; '.join(told)}"
    lacking = any(rank.state in (_NEVER, _NO_DUMP) for rank in one.ranks)
    return Finding("never_arrived", "high" if lacking else "medium", text, 0, f"{one.group}|{one.sequence}")


def _words(alike: Sequence[_Rank]) -> str:
    """`rank 3 never arrived, after all_reduce 104 at train.py:41 step`."""
    state, one = alike[0].state, len(alike) == 1
    verb = _WORDS[state].replace("wait ", "waits ") if one else _WORDS[state]
    text = f"rank{'' if one else 's'} {format_ranks([rank.rank for rank in alike])} {verb}"
    lines = sorted({rank.line for rank in alike if rank.line})
    where = f" at {lines[0]}" + (f" and {len(lines) - 1} more lines" if len(lines) > 1 else "") if lines else ""
    last = alike[0]
    if state == _NEVER and last.flight is not None and last.entry >= 0:
        return f"{text}, its last is {last.name} {int(last.flight.sequence[last.entry])}{where}"
    return text + where
