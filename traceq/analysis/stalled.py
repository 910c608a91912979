"""What ranks had issued last, and where they waited, when they gave up: by the dumps that a recording keeps of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceq.facts.comm.collectives import COLLECTIVE_NAMES, name_number
from traceq.facts.ranks.job import Job
from traceq.model import Flight, Trace
from traceq.report import Cell, Column, Report, Table
from traceq.units import Unit

POSITION = 58

_COLUMNS = (
    Column("key", "key"),
    Column("rank", "rank", Unit.COUNT),
    Column("group", "group"),
    Column("sequence", "sequence", Unit.COUNT),
    Column("name", "collective"),
    Column("dtype", "dtype"),
    Column("elements", "elements", Unit.COUNT),
    Column("waits_at", "waits at"),
)


def summarize(trace: Trace) -> None:
    """Nothing: a rank that gave up left a dump, and no trace."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """The last collective that each rank issued in each group; nothing where no rank gave up."""
    rows = tuple(row for flight in job.flights if flight.waits_at for row in _last_of_each_group(flight))
    note = "The last collective that each rank issued; the one before may be the one that never ended."
    view = Table("stalled", "Ranks that gave up", _COLUMNS[1:], tuple(row[1:] for row in rows), note=note)
    return Report("stalled", (Table("stalled", "Stalled", _COLUMNS, rows),), (view,) if rows else ())


def _last_of_each_group(flight: Flight) -> Iterator[tuple[Cell, ...]]:
    """Entries are sorted by (group, sequence), so the last of a group is the one before the next group begins."""
    last = {group: entry for entry, group in enumerate(flight.group)}
    for group, entry in last.items():
        told, elements = flight.name[entry], int(flight.elements[entry])
        number = name_number(told)
        yield (
            f"{group}|{flight.rank}",
            flight.rank,
            group,
            int(flight.sequence[entry]),
            COLLECTIVE_NAMES[number] if number >= 0 else told.rpartition(":")[2],
            flight.dtype[entry] or None,
            elements if elements >= 0 else None,
            flight.waits_at,
        )
