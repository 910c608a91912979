"""What is every nanosecond of a step spent on? The cells add up to the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traceq.analyses.tally import group
from traceq.analyses.wording import MOST_RANKS, a_step, more_rows, per_step
from traceq.intervals import find
from traceq.links.activity import Doing, activity
from traceq.links.phases import phases
from traceq.links.steps import steps
from traceq.model import Run, Trace
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


_CATEGORIES = tuple(doing.name.lower() for doing in Doing)
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


def analyze(run: Run) -> Report:
    """Exact partition of every window by phase and category."""
    rows = tuple(row for trace in run.traces for row in _rows(trace))
    table = Table("partition", "Partition", _COLUMNS, rows)
    views = [_matrix(run, rows)] if rows else []
    if rows and len(run.traces) > 1 and (by_rank := _by_rank(run, rows)).rows:
        views.append(by_rank)
    return Report("partition", (table,), tuple(views), tuple(_findings(run, rows)))


def _rows(trace: Trace) -> list[_Row]:
    done, found = activity(trace), steps(trace)
    step = find(found.window, done.parts[:, 0])
    inside = step >= 0
    cells = group([step[inside], done.phase[inside], done.doing[inside]])
    names = phases(trace).names
    totals = cells.sum(done.ns[inside])
    return [
        (trace.rank, k, names[phase], _CATEGORIES[doing], ns)
        for (k, phase, doing), ns in zip(cells.keys.tolist(), totals, strict=True)
    ]


def _means(run: Run, rows: Sequence[_Row]) -> list[tuple[int, str, str, float]]:
    """(rank, phase, category, ns of a counted step) of each cell."""
    counted = {trace.rank: set(np.flatnonzero(steps(trace).counted).tolist()) for trace in run.traces}
    return [
        (rank, phase, category, ns / len(counted[rank]))
        for rank, step, phase, category, ns in rows
        if step in counted[rank]
    ]


def _findings(run: Run, rows: Sequence[_Row]) -> list[Finding]:
    """Categories of lost time that take a telling share of the step, mean over ranks."""
    sums: dict[str, float] = {}
    for _, _, category, ns in _means(run, rows):
        sums[category] = sums.get(category, 0.0) + ns / len(run.traces)
    whole = sum(sums.values())
    findings = []
    for category, (least_pct, meaning) in _TELLING.items():
        share = 100 * sums.get(category, 0.0) / whole if whole else 0.0
        if share >= least_pct:
            each, part = format_value(sums[category], Unit.NS), format_value(share, Unit.PERCENT)
            text = f"{category.replace('_', ' ')}, {each} {per_step(run.traces[0])} ({part}): {meaning}"
            findings.append(Finding(category, "medium", text, round(sums[category])))
    return findings


def _matrix(run: Run, rows: Sequence[_Row]) -> Table:
    """Phase by category: ns of a step, mean over ranks."""
    order = list(dict.fromkeys(name for trace in run.traces for name in phases(trace).in_order))
    means = [(phase, category, ns / len(run.traces)) for _, phase, category, ns in _means(run, rows)]
    means.sort(key=lambda cell: order.index(cell[0]))
    of = " (mean of ranks)" if len(run.traces) > 1 else ""
    what = a_step(run.traces[0]).capitalize()
    return _cross(f"{what}, part by part{of}", "phase", means, total=True)


def _by_rank(run: Run, rows: Sequence[_Row]) -> Table:
    """Where ranks spend a step on different things; no rows where they do not."""
    means = [(f"rank {rank}", category, ns) for rank, _, category, ns in _means(run, rows)]
    table = _cross(f"{a_step(run.traces[0]).capitalize()}, by rank", "rank", means, total=False)
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
