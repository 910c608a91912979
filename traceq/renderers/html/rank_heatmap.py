"""Heat map of ranks by phase: time over the median, of each rank or, with many ranks, of each host."""

from __future__ import annotations

from statistics import median

from traceq.renderers.html import charts
from traceq.renderers.html.charts import Mark, mark_label
from traceq.report import Table

__all__ = ["rank_heatmap"]

_MS = 1e6
_MOST_COLUMNS = 128


def rank_heatmap(rank_phases: Table) -> str:
    """Return the chart of the table `rank_phases`, with a column for each rank.

    If there are too many ranks for a page, a column is a host, or a group of adjacent ranks, by its slowest rank.
    """
    keys = [column.key for column in rank_phases.columns]
    rank, host, phase, own_ns = (keys.index(key) for key in ("rank", "host", "phase", "own_ns"))
    times: dict[str, list[tuple[str, int, float]]] = {}
    for row in rank_phases.rows:
        times.setdefault(str(row[phase]), []).append((str(row[host]), int(row[rank] or 0), float(row[own_ns] or 0)))
    names = _columns([(name, number) for name, number, _ in next(iter(times.values()))])
    marks: list[Mark] = []
    for name, each in times.items():
        median_ns = median(ns for *_, ns in each)
        slowest: dict[str, float] = {}
        for (*_, ns), column in zip(each, names, strict=True):
            slowest[column] = max(slowest.get(column, 0.0), ns - median_ns)
        for column, ns in slowest.items():
            label = mark_label(f"{column} · {name}, over the median", ns)
            marks.append({"row": name, "column": column, "ms": ns / _MS, "label": label})
    return charts.heatmap(marks, list(times), list(dict.fromkeys(names)))


def _columns(ranks: list[tuple[str, int]]) -> list[str]:
    """Return the column of each (host, rank)."""
    if len(ranks) <= _MOST_COLUMNS:
        return [f"{number}" for _, number in ranks]
    hosts = list(dict.fromkeys(host for host, _ in ranks))
    if all(hosts) and len(hosts) <= _MOST_COLUMNS:
        return [host for host, _ in ranks]
    size = -(-len(ranks) // _MOST_COLUMNS)
    return [f"from {ranks[index - index % size][1]}" for index in range(len(ranks))]
