"""Which collective never completed, and which rank never arrived? By the flight recorders of ranks of a stuck job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceq.analysis import sentences
from traceq.claims.claim import Claim, Subject, measured
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, name_number
from traceq.facts.ranks.job import Job
from traceq.frozen import frozen
from traceq.model import Flight, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, name_ranks

_NEVER, _NO_DUMP = "never arrived", "no dump"
_MEASURES = {
    _NEVER: "absent_ranks",
    _NO_DUMP: "undumped_ranks",
    "scheduled": "queued_ranks",
    "started": "waiting_ranks",
    "completed": "done_ranks",
}
"""Measures that name the ranks in a state."""


@frozen
class ArrivalRow:
    """How far a rank came with a collective that never completed, by its dump."""

    key: str = column("key", is_hidden=True)
    group: str = column("group")
    sequence: int = column("sequence", Unit.COUNT)
    rank: int = column("rank", Unit.COUNT)
    state: str = column("state")
    """`never arrived`, `no dump`, `scheduled`, `started`, `completed`."""
    name: str | None = column("collective")
    """Issued there, or the last one before."""
    dtype: str | None = column("dtype")
    elements: int | None = column("elements", Unit.COUNT)
    line: str = column("line")
    last_sequence: int | None = None
    """Number of that entry; None without an entry."""


@frozen
class _Stuck:
    """The first collective of a group that some rank has not completed; `issued_ns`, when it was first issued."""

    group: str
    sequence: int
    issued_ns: int
    ranks: tuple[ArrivalRow, ...]


def summarize(trace: Trace) -> None:
    """Return nothing: a profiled window does not show who is missing."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """Return the first collective of each group that did not complete on all ranks.

    Windows of a recording that continued are left out.
    """
    stuck = _all_stuck([flight for flight in job.flights if not flight.is_window])
    table = Table.of("arrivals", "Arrivals", ArrivalRow, [row for each in stuck for row in each.ranks])
    view = replace(table.visible, title=sentences.ARRIVALS, note=sentences.LAST_ISSUED)
    return Report("arrivals", (table,), (view,) if table.rows else (), tuple(map(_finding, stuck)))


def _all_stuck(flights: Sequence[Flight]) -> list[_Stuck]:
    """Return one for each group, in the order in which they were issued: the earlier holds up the later."""
    groups = dict.fromkeys(key for flight in flights for key in zip(flight.group, flight.members, strict=True))
    stuck = [_stuck(flights, group, members) for group, members in groups]
    return sorted((each for each in stuck if each is not None), key=lambda each: each.issued_ns)


def _stuck(flights: Sequence[Flight], group: str, members: str) -> _Stuck | None:
    """Return the first entry of a group that a rank has not completed; None where all recorded ones completed."""
    flight_of = {flight.rank: flight for flight in flights}
    entries = {flight.rank: _entries(flight, group, members) for flight in flights}
    pending = [
        (int(flight_of[rank].sequence[entry]), int(flight_of[rank].created_ns[entry]))
        for rank, rank_entries in entries.items()
        for entry in rank_entries
        if flight_of[rank].state[entry] in ("scheduled", "started")
    ]
    if not pending:
        return None
    sequence = min(number for number, _ in pending)
    ranks = _members(members) or tuple(rank for rank, rank_entries in entries.items() if rank_entries)
    rows = tuple(_row(rank, flight_of.get(rank), entries.get(rank, []), group, sequence) for rank in sorted(ranks))
    return _Stuck(group, sequence, min(created_ns for number, created_ns in pending if number == sequence), rows)


def _entries(flight: Flight, group: str, members: str) -> list[int]:
    """Return the entries of one group, by sequence."""
    keys = zip(flight.group, flight.members, strict=True)
    return [entry for entry, key in enumerate(keys) if key == (group, members)]


def _members(members: str) -> tuple[int, ...]:
    """Return `[0, 1]` as ranks; none where the dump does not list them."""
    numbers = members.strip("[]").replace(" ", "")
    return tuple(int(rank) for rank in numbers.split(",")) if numbers.replace(",", "").isdigit() else ()


def _row(rank: int, flight: Flight | None, entries: Sequence[int], group: str, sequence: int) -> ArrivalRow:
    """Return how far a rank came with a sequence number."""
    state, entry = _arrival(flight, entries, sequence)
    identity = (f"{group}|{sequence}|{rank}", group, sequence, rank, state)
    if flight is None or entry is None:
        return ArrivalRow(*identity, None, None, None, "")
    elements = int(flight.elements[entry])
    return ArrivalRow(
        *identity,
        name=recorded_name(flight.name[entry]),
        dtype=flight.dtype[entry] or None,
        elements=elements if elements >= 0 else None,
        line=flight.line[entry],
        last_sequence=int(flight.sequence[entry]),
    )


def _arrival(flight: Flight | None, entries: Sequence[int], sequence: int) -> tuple[str, int | None]:
    """Return (state, the entry of the sequence number or the last before it).

    A rank whose first entry is later has overwritten the entry, so it completed it.
    """
    if flight is None:
        return _NO_DUMP, None
    last = max((entry for entry in entries if flight.sequence[entry] <= sequence), default=None)
    if last is not None and flight.sequence[last] == sequence:
        return flight.state[last] or "completed", last
    is_past = bool((flight.sequence[list(entries)] > sequence).any())
    return "completed" if is_past else _NEVER, last


def recorded_name(text: str) -> str:
    """Return the name of a recorded collective; a barrier moves no data and keeps the recorder's name."""
    number = name_number(text)
    return COLLECTIVE_NAMES[number] if number >= 0 else text.rpartition(":")[2]


def _finding(stuck: _Stuck) -> Claim:
    """Return the claim on who is missing, what they issued last, and where the others wait."""
    ranks_by_state: dict[str, list[int]] = {}
    for row in stuck.ranks:
        ranks_by_state.setdefault(row.state, []).append(row.rank)
    issued = [row for row in stuck.ranks if row.last_sequence == stuck.sequence]
    measures = measured(
        sequence=stuck.sequence,
        group=stuck.group or "all",
        **{_MEASURES[state]: name_ranks(ranks) for state, ranks in ranks_by_state.items() if state in _MEASURES},
    )
    for row in stuck.ranks:
        if row.state == _NEVER and row.last_sequence is not None:
            measures |= measured(last_collective=row.name, last_sequence=row.last_sequence, last_line=row.line)
            break
    line = min((row.line for row in issued if row.line), default="")
    subject = Subject(collective=issued[0].name or "", line=line, key=f"{stuck.group}|{stuck.sequence}")
    return Claim("never_arrived", 0, subject, measures)
