"""What had each rank issued last, and where did it wait, when the job gave up? From the dumps that ranks leave then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceq.analysis import sentences
from traceq.analysis.arrivals import recorded_name
from traceq.facts.ranks.job import Job
from traceq.frozen import frozen
from traceq.model import Flight, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit


@frozen
class StalledRow:
    """The last collective issued in a group by a recording that gave up, from `RUN/stalled`."""

    key: str = column("key", is_hidden=True)
    rank: int = column("rank", Unit.COUNT)
    group: str = column("group")
    sequence: int = column("sequence", Unit.COUNT)
    name: str = column("collective")
    """With `_barrier` where no data move."""
    dtype: str | None = column("dtype")
    elements: int | None = column("elements", Unit.COUNT)
    waits_at: str = column("waits at")


def summarize(trace: Trace) -> None:
    """Return nothing: a rank that gave up left a dump, and no trace."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """Return the last collective that each rank issued in each group; nothing where no rank gave up."""
    rows = [row for flight in job.flights if flight.waits_at for row in _last_of_each_group(flight)]
    view = Table.of("stalled", "Ranks that gave up", StalledRow, rows, note=sentences.GAVE_UP).visible
    return Report("stalled", (Table.of("stalled", "Stalled", StalledRow, rows),), (view,) if rows else ())


def _last_of_each_group(flight: Flight) -> Iterator[StalledRow]:
    """Yield a row for the last entry of each group; entries are sorted by (group, sequence)."""
    last = {group: entry for entry, group in enumerate(flight.group)}
    for group, entry in last.items():
        elements = int(flight.elements[entry])
        yield StalledRow(
            key=f"{group}|{flight.rank}",
            rank=flight.rank,
            group=group,
            sequence=int(flight.sequence[entry]),
            name=recorded_name(flight.name[entry]),
            dtype=flight.dtype[entry] or None,
            elements=elements if elements >= 0 else None,
            waits_at=flight.waits_at,
        )
