"""What is every nanosecond of a step spent on? The cells add up to the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceq.analysis._parts import of_all
from traceq.analysis._wording import MOST_RANKS, a_step, more_rows, per_step
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.grouping import group
from traceq.intervals import span_index
from traceq.model import Trace
from traceq.report import Cell, Column, Finding, Report, Table
from traceq.units import Unit, bar, format_value

POSITION = 30

_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("step", "step", Unit.COUNT),
    Column("phase", "phase"),
    Column("category", "category"),
    Column("ns", "time", Unit.NS),
)


_CATEGORIES = tuple(doing.name.lower() for doing in TimeCategory)
_TELLING = {
    "host_bound": (10.0, "the device waits while the host prepares the next launch"),
    "exposed_comm": (10.0, "ranks exchange data while nothing computes; overlap it, or exchange less"),
    "exposed_memcpy": (5.0, "copies run while nothing computes; overlap them, or copy less"),
    "sync_wait": (2.0, "the host waits for the device, which then has nothing to do"),
    "alloc_wait": (2.0, "the allocator asks the driver for memory"),
    "dataload_wait": (5.0, "the main thread waits for the data loader"),
}
"""Category -> (percent of the step from which it is worth a line, what it means)."""

_APART = 0.05
"""Part of a step by which ranks must differ to be shown one by one."""

_Row = tuple[int, int, str, str, int]
_Mean = tuple[int, str, str, float]
"""(rank, phase, category, ns of a counted step) of a cell."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's rows, and its phases as the main thread comes to them."""

    rows: tuple[_Row, ...]
    in_order: tuple[str, ...]


def summarize(trace: Trace) -> _Rank:
    """Exact partition of every window by phase and category."""
    return _Rank(tuple(_rows(trace)), phases(trace).in_order)


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """The rows of all ranks; people see means over them, and ranks that differ."""
    rows = of_all(parts)
    means = _means(job, rows)
    table = Table("partition", "Partition", _COLUMNS, rows)
    order = list(dict.fromkeys(name for part in parts for name in part.in_order))
    views = [_matrix(job, means, order)] if rows else []
    if rows and len(job.ranks) > 1 and (by_rank := _by_rank(job, means)).rows:
        views.append(by_rank)
    return Report("partition", (table,), tuple(views), tuple(_findings(job, means)))


def _rows(trace: Trace) -> list[_Row]:
    done, found = activity(trace), steps(trace)
    step = span_index(found.window, done.parts[:, 0])
    inside = step >= 0
    cells = group([step[inside], done.phase[inside], done.doing[inside]])
    names = phases(trace).names
    totals = cells.sum(done.ns[inside])
    return [
        (trace.rank, k, names[phase], _CATEGORIES[doing], ns)
        for (k, phase, doing), ns in zip(cells.keys.tolist(), totals, strict=True)
    ]


def _means(job: Job, rows: Sequence[_Row]) -> list[_Mean]:
    counted = {rank.rank: set(np.flatnonzero(rank.steps.counted).tolist()) for rank in job.ranks}
    sums: dict[tuple[int, str, str], int] = {}
    for rank, step, phase, category, ns in rows:
        if step in counted[rank]:
            sums[rank, phase, category] = sums.get((rank, phase, category), 0) + ns
    return [(*cell, ns / len(counted[cell[0]])) for cell, ns in sums.items()]


def _findings(job: Job, means: Sequence[_Mean]) -> list[Finding]:
    """Categories of lost time that take a telling share of the step, mean over ranks."""
    sums: dict[str, float] = {}
    for _, _, category, ns in means:
        sums[category] = sums.get(category, 0.0) + ns / len(job.ranks)
    whole = sum(sums.values())
    findings = []
    for category, (least_pct, meaning) in _TELLING.items():
        share = 100 * sums.get(category, 0.0) / whole if whole else 0.0
        if share >= least_pct:
            each, part = format_value(sums[category], Unit.NS), format_value(share, Unit.PERCENT)
            text = f"{category.replace('_', ' ')}, {each} {per_step(job.ranks[0].steps)} ({part}): {meaning}"
            findings.append(Finding(category, "medium", text, round(sums[category])))
    return findings


def _matrix(job: Job, means: Sequence[_Mean], order: Sequence[str]) -> Table:
    """Phase by category: ns of a step, mean over ranks."""
    cells = [(phase, category, ns / len(job.ranks)) for _, phase, category, ns in means]
    cells.sort(key=lambda cell: order.index(cell[0]))
    of = " (mean of ranks)" if len(job.ranks) > 1 else ""
    what = a_step(job.ranks[0].steps).capitalize()
    return _cross(f"{what}, part by part{of}", "phase", cells, total=True)


def _by_rank(job: Job, means: Sequence[_Mean]) -> Table:
    """Where ranks spend a step on different things; no rows where they do not."""
    cells = [(f"rank {rank}", category, ns) for rank, _, category, ns in means]
    table = _cross(f"{a_step(job.ranks[0].steps).capitalize()}, by rank", "rank", cells, total=False)
    columns = np.array([[float(value or 0.0) for value in row[1:]] for row in table.rows], np.float64)
    apart = np.ptp(columns, axis=0).max()
    if apart < _APART * columns[:, -1].mean():
        return replace(table, rows=())
    longest = np.sort(np.argsort(-columns[:, -1], kind="stable")[:MOST_RANKS])
    shown = tuple(table.rows[at] for at in longest.tolist())
    return replace(table, rows=shown, note=more_rows(len(table.rows) - len(shown)))


def _cross(title: str, heading: str, cells: list[tuple[str, str, float]], *, total: bool) -> Table:
    """A table of sums with one row for each first and one column for each second element."""
    sums: dict[tuple[str, str], float] = {}
    for row, category, ns in cells:
        sums[row, category] = sums.get((row, category), 0.0) + ns
    lines = list(dict.fromkeys(row for row, _ in sums))
    total = total and len(lines) > 1
    categories = [category for category in _CATEGORIES if any(c == category for _, c in sums)]
    whole = sum(sums.values())
    body: list[tuple[Cell, ...]] = []
    for line in lines:
        values = [sums.get((line, category)) for category in categories]
        subtotal = sum(value or 0.0 for value in values)
        percent = 100 * subtotal / whole if whole else 0.0
        body.append((line, *values, subtotal, *((percent, bar(percent)) if total else ())))
    if total:
        by_category = [sum(sums.get((line, category), 0.0) for line in lines) for category in categories]
        body.append(("total", *by_category, whole, 100.0 if whole else 0.0, ""))
    columns = [Column(heading, heading), *(Column(c, c.replace("_", " "), Unit.NS) for c in categories)]
    columns.append(Column("total", "total", Unit.NS))
    if total:
        columns += [Column("share", "share", Unit.PERCENT), Column("bar", "")]
    return Table("partition", title, tuple(columns), tuple(body))
