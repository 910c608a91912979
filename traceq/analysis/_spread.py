"""How times spread over ranks: percentiles of each phase, and a heat map of rank by phase."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.ranks.phase_times import RankTimes
from traceq.report import Cell, Column, Table
from traceq.units import Unit, format_value, shades

__all__ = ["each_rank", "heat_view", "spread_table"]

_SPREAD = (
    Column("key", "key"),
    Column("name", "phase"),
    Column("min_ns", "least", Unit.NS),
    Column("p5_ns", "5 %", Unit.NS),
    Column("median_ns", "median", Unit.NS),
    Column("p95_ns", "95 %", Unit.NS),
    Column("max_ns", "most", Unit.NS),
    Column("max_rank", "on rank", Unit.COUNT),
    Column("max_host", "host"),
)
_EACH = (
    Column("rank", "rank", Unit.COUNT),
    Column("host", "host"),
    Column("phase", "phase"),
    Column("own_ns", "own time", Unit.NS),
    Column("waits_ns", "waits", Unit.NS),
)
_WAITS, _STEP = "waits", "step"
_CELLS = 32


def spread_table(found: RankTimes | None) -> Table:
    """Percentiles over ranks of the own time in each phase, of the waits in collectives, and of the step."""
    return Table("percentiles", "Spread over ranks", _SPREAD, tuple(_spread(found)) if found is not None else ())


def each_rank(found: RankTimes | None) -> Table:
    """Own time and waits of a step, a row for each rank and phase."""
    return Table("rank_phases", "Ranks by phase", _EACH, tuple(_each(found)) if found is not None else ())


def heat_view(found: RankTimes, spread: Table) -> Table:
    """Percentiles, and beside each phase a line of cells, shaded by what a rank takes over the median."""
    opens, cell = _cells(found)
    more = [np.maximum.reduceat(values, opens) - np.median(values) for values in found.own.T]
    darkest = max(float(each.max()) for each in more) or 1.0
    drawn = [shades((each / darkest).tolist()) for each in more]
    rows = tuple((*row[1:], line) for row, line in zip(spread.rows, [*drawn, "", ""], strict=True))
    over = format_value(darkest, Unit.NS)
    note = f"A cell is {cell}, shaded by the slowest rank; full: {over} over the phase's median."
    columns = (*spread.columns[1:], Column("each", f"ranks {found.ranks[0]} to {found.ranks[-1]}"))
    return Table("percentiles", "A step's own time, over ranks", columns, rows, note=note)


def _spread(found: RankTimes) -> list[tuple[Cell, ...]]:
    columns = [*found.own.T, found.waits.sum(axis=1), found.step]
    rows: list[tuple[Cell, ...]] = []
    for name, values in zip((*found.phases, _WAITS, _STEP), columns, strict=True):
        low, p5, median, p95, high = (round(float(one)) for one in np.percentile(values, [0, 5, 50, 95, 100]))
        most = int(values.argmax())
        rows.append((name, name, low, p5, median, p95, high, found.ranks[most], found.hosts[most]))
    return rows


def _each(found: RankTimes) -> list[tuple[Cell, ...]]:
    own, waits = (times.round().astype(np.int64).tolist() for times in (found.own, found.waits))
    return [
        (rank, found.hosts[at], phase, own[at][number], waits[at][number])
        for at, rank in enumerate(found.ranks)
        for number, phase in enumerate(found.phases)
    ]


def _cells(found: RankTimes) -> tuple[NDArray[np.int64], str]:
    """(first rank of each cell, what a cell is): so many whole hosts, or ranks, that all of them fit."""
    hosts = np.array(found.hosts)
    opens = np.flatnonzero(np.r_[True, hosts[1:] != hosts[:-1]])
    by_host = all(found.hosts) and 1 < len(opens) < len(hosts)
    opens, what = (opens, "host") if by_host else (np.arange(len(hosts)), "rank")
    each = -(-len(opens) // _CELLS)
    return opens[::each], f"{each} {what}s" if each > 1 else f"a {what}"
