"""The ranks that the timeline shows: the slowest, the median and the fastest, by what they wait for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceq.report import Cell, Sheet

__all__ = ["shown_ranks"]


def shown_ranks(sheet: Sheet) -> dict[int, str]:
    """Return the ranks that matter, each with its title, the slowest first; all of up to three.

    The slowest waits least for others in collectives; without collectives it is the one with the longest step.
    """
    ranks = sheet.source.ranks
    if len(ranks) < 2:
        return {rank: f"rank {rank}" for rank in ranks}
    order, words = _by_waits(sheet)
    if len(order) != len(ranks):
        return {rank: f"rank {rank}" for rank in ranks[:3]}
    chosen = dict.fromkeys((order[0], order[len(order) // 2], order[-1]))
    titles = dict(zip((order[0], order[-1]), words, strict=True))
    return {rank: f"rank {rank} · {titles.get(rank, 'median')}" for rank in chosen}


def _by_waits(sheet: Sheet) -> tuple[list[int], tuple[str, str]]:
    """Return the ranks, the slowest first, and what to call the first and the last."""
    rows = [
        dict(zip((column.key for column in table.columns), row, strict=True))
        for report in sheet.reports
        if report.name == "ranks"
        for table in report.tables
        if table.key == "ranks"
        for row in table.rows
    ]
    if rows and all(row["wait_ns"] is not None for row in rows):
        return _ordered(rows, "wait_ns", 1), ("slowest: waits least for others", "fastest: waits most for others")
    return _ordered(rows, "step_ns", -1), ("slowest: longest step", "fastest: shortest step")


def _ordered(rows: Sequence[Mapping[str, Cell]], key: str, sign: int) -> list[int]:
    """Return the ranks of the rows by a column, ascending for sign 1."""
    return [int(row["rank"] or 0) for row in sorted(rows, key=lambda row: sign * float(row[key] or 0))]
