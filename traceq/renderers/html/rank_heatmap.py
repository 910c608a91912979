"""Heat maps of ranks: lost time by category, and time over the median by phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from traceq.renderers.html.markup import Json, figure
from traceq.report import Cell, Table
from traceq.units import Unit, format_value

__all__ = ["lost_time_chart", "rank_heatmap"]

_MOST_COLUMNS = 128
_COMPUTES = ("compute", "cpu_compute")


def lost_time_chart(view: Table) -> str:
    """Return the time of each rank that is not compute, which would dominate the colours."""
    columns = [
        column
        for column in view.columns
        if column.unit is Unit.NS and column.key != "total" and column.key not in _COMPUTES
    ]
    rows = [row for row in view.to_dicts() if row["rank"] != "total"]
    cells = {(column.heading, str(row["rank"])): _number(row[column.key]) for row in rows for column in columns}
    return _heatmap(cells, "Time per step that is not compute, by rank", "{column}, {row}: {size}")


def rank_heatmap(rank_phases: Table) -> str:
    """Return the chart of the table `rank_phases`: a row per phase, a column for each rank.

    If there are too many ranks for a page, a column is a host, or a group of adjacent ranks, by its slowest rank.
    """
    times: dict[str, list[tuple[str, int, float]]] = {}
    for row in rank_phases.to_dicts():
        of_rank = str(row["host"]), int(row["rank"] or 0), _number(row["own_ns"])
        times.setdefault(str(row["phase"]), []).append(of_rank)
    names = _columns([(host, rank) for host, rank, _ in next(iter(times.values()))])
    slowest: dict[tuple[str, str], float] = {}
    for phase, each in times.items():
        median_ns = median(ns for *_, ns in each)
        for (*_, ns), name in zip(each, names, strict=True):
            slowest[phase, name] = max(slowest.get((phase, name), 0.0), ns - median_ns)
    title = "Time over the median rank, per step, without exposed communication"
    return _heatmap(slowest, title, "{column}, {row}: {size} over the median")


def _heatmap(cells: Mapping[tuple[str, str], float], title: str, label: str) -> str:
    """Return the figure of a size in ns per (row, column)."""
    rows, columns = _distinct(row for row, _ in cells), _distinct(column for _, column in cells)
    if not rows or not any(cells.values()):
        return ""
    data: dict[str, Json] = {
        "rows": rows,
        "columns": [name.removeprefix("rank ") for name in columns],
        "across": "rank" if columns[0].startswith("rank ") else "host",
        "cells": [
            {
                "row": rows.index(row),
                "column": columns.index(column),
                "size": round(size),
                "text": format_value(size, Unit.NS),
                "label": label.format(column=column, row=row, size=format_value(size, Unit.NS)),
            }
            for (row, column), size in cells.items()
        ],
    }
    return figure("heatmap", data, title)


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _columns(ranks: Sequence[tuple[str, float]]) -> list[str]:
    """Return the column of each (host, rank)."""
    if len(ranks) <= _MOST_COLUMNS:
        return [f"rank {rank:.0f}" for _, rank in ranks]
    hosts = _distinct(host for host, _ in ranks)
    if all(hosts) and len(hosts) <= _MOST_COLUMNS:
        return [host for host, _ in ranks]
    size = -(-len(ranks) // _MOST_COLUMNS)
    return [f"rank {ranks[index - index % size][1]:.0f} on" for index in range(len(ranks))]


def _number(value: Cell) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
