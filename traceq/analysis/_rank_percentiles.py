"""Spread of times over ranks: percentiles of each phase, and a heat map of rank by phase."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.facts.ranks.phase_times import RankTimes
from traceq.frozen import frozen
from traceq.report import Column, Table, column
from traceq.units import Unit, format_value, shades

__all__ = ["PercentileRow", "RankPhaseRow", "each_rank", "heat_view", "spread_table"]

_WAITS, _STEP = "waits", "step"
_CELLS = 32


@frozen
class PercentileRow:
    """Percentiles over ranks."""

    key: str = column("key", is_hidden=True)
    name: str = column("phase")
    """A phase (own time in it), `waits` (exposed communication) or `step`."""
    min_ns: int = column("min", Unit.NS)
    p5_ns: int = column("p5", Unit.NS)
    median_ns: int = column("median", Unit.NS)
    p95_ns: int = column("p95", Unit.NS)
    max_ns: int = column("max", Unit.NS)
    max_rank: int = column("on rank", Unit.COUNT)
    max_host: str = column("host")


@frozen
class RankPhaseRow:
    """Own time and waits in one phase of a mean step."""

    rank: int = column("rank", Unit.COUNT)
    host: str = column("host")
    phase: str = column("phase")
    own_ns: int = column("own time", Unit.NS)
    """Mean, minus `waits_ns`."""
    waits_ns: int = column("waits", Unit.NS)


def spread_table(times: RankTimes | None) -> Table:
    """Return percentiles over ranks of the own time in each phase, of the waits in collectives, and of the step."""
    return Table.of("percentiles", "Spread over ranks", PercentileRow, _percentiles(times) if times is not None else ())


def each_rank(times: RankTimes | None) -> Table:
    """Return own time and waits of a step, a row for each rank and phase."""
    return Table.of("rank_phases", "Ranks by phase", RankPhaseRow, _by_phase(times) if times is not None else ())


def heat_view(times: RankTimes, spread: Table) -> Table:
    """Return the percentiles, and beside each phase a line of cells shaded by the time above the median."""
    opens, cell = _cells(times)
    above = [np.maximum.reduceat(values, opens) - np.median(values) for values in times.local.T]
    darkest = max(float(values.max()) for values in above) or 1.0
    lines = [shades((values / darkest).tolist()) for values in above]
    darkest_text = format_value(darkest, Unit.NS)
    note = f"One cell is {cell}, shaded by its slowest rank; the darkest is {darkest_text} above the phase's median."
    ranks = Column("each", f"ranks {times.ranks[0]} to {times.ranks[-1]}")
    view = spread.visible.with_column(ranks, [*lines, "", ""])
    return replace(view, title="Own time of a step, over ranks", note=note)


def _percentiles(times: RankTimes) -> list[PercentileRow]:
    columns = [*times.local.T, times.waits.sum(axis=1), times.step]
    rows = []
    for name, values in zip((*times.phases, _WAITS, _STEP), columns, strict=True):
        low, p5, median, p95, high = (round(float(value)) for value in np.percentile(values, [0, 5, 50, 95, 100]))
        slowest = int(values.argmax())
        rank, host = times.ranks[slowest], times.hosts[slowest]
        rows.append(PercentileRow(name, name, low, p5, median, p95, high, rank, host))
    return rows


def _by_phase(times: RankTimes) -> list[RankPhaseRow]:
    own_ns, waits_ns = (values.round().astype(np.int64).tolist() for values in (times.local, times.waits))
    return [
        RankPhaseRow(rank, times.hosts[index], phase, own_ns[index][number], waits_ns[index][number])
        for index, rank in enumerate(times.ranks)
        for number, phase in enumerate(times.phases)
    ]


def _cells(times: RankTimes) -> tuple[NDArray[np.int64], str]:
    """Return (first rank of each cell, name of a cell): so many whole hosts, or ranks, that all cells fit."""
    hosts = np.array(times.hosts)
    opens = np.flatnonzero(np.r_[True, hosts[1:] != hosts[:-1]])
    by_host = all(times.hosts) and 1 < len(opens) < len(hosts)
    opens, noun = (opens, "host") if by_host else (np.arange(len(hosts)), "rank")
    num = -(-len(opens) // _CELLS)
    return opens[::num], f"{num} {noun}s" if num > 1 else f"a {noun}"
