"""How many events has each rank?"""

from collections.abc import Sequence

from traceq import Report, Table, Trace
from traceq.facts.ranks.job import Job
from traceq.report import Column
from traceq.units import Unit

POSITION = 90


def summarize(trace: Trace) -> int:
    """Return what is kept of one rank, whose events are then dropped."""
    return len(trace.events)


def merge(job: Job, parts: Sequence[int]) -> Report:
    """Return the report on all ranks."""
    columns = (Column("rank", "rank", Unit.COUNT), Column("num_events", "events", Unit.COUNT))
    rows = tuple((rank.rank, num) for rank, num in zip(job.ranks, parts, strict=True))
    table = Table("toy", "Events", columns, rows)
    return Report("toy", tables=(table,), views=(table,))
