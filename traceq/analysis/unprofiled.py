"""How long are the steps that no profiler slowed down? What the verdict of a diff rests on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.facts.ranks.job import Job
from traceq.model import Pairs, Trace
from traceq.report import Cell, Column, Report, Table
from traceq.stats import slowest_rank_ns
from traceq.units import Unit

POSITION = 5

_COLUMNS = (
    Column("comparison", "arms"),
    Column("num_pairs", "pairs", Unit.COUNT),
    Column("a_ns", "first arm", Unit.NS),
    Column("b_ns", "second arm", Unit.NS),
    Column("spread_ns", "middle half within", Unit.NS),
)


def summarize(trace: Trace) -> None:
    """Nothing: profiled steps have no part in it."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """Median step of the job (the slowest rank) in each arm of a recording; nothing for other traces. Of
    arms that ran apart `arms` tells.
    """
    rows = tuple(_row(pairs) for pairs in job.pairs if pairs.b_second.size)
    note = "" if all(pairs.is_control for pairs in job.pairs) else "`traceq diff` on the run decides from these."
    view = Table("unprofiled", "Unprofiled steps (job: the slowest rank)", _COLUMNS, rows, note=note)
    return Report("unprofiled", views=(view,) if rows else ())


def _row(pairs: Pairs) -> tuple[Cell, ...]:
    a, b = (slowest_rank_ns(pairs, of_b=side) for side in (False, True))
    low, high = np.percentile(a, (25, 75))
    name = f"{pairs.a}, {pairs.b}" if not pairs.is_control else f"{pairs.a}, {pairs.a} again"
    return (name, len(a), float(np.median(a)), float(np.median(b)), float(high - low))
