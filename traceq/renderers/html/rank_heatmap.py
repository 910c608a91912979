"""Rank by phase as a heat map: what each rank, or each host of many, takes over the median."""

from __future__ import annotations

from statistics import median

from traceq.renderers.html import charts
from traceq.renderers.html.charts import Mark, said
from traceq.report import Table

__all__ = ["rank_map"]

_MS = 1e6
_MOST_COLUMNS = 128


def rank_map(found: Table) -> str:
    """The picture of the table `rank_phases`: a column for each rank. Where ranks are more than a page is wide, one for
    each host, or for as many neighbours as it takes for all to fit, by their slowest rank.
    """
    keys = [column.key for column in found.columns]
    rank, host, phase, own = (keys.index(key) for key in ("rank", "host", "phase", "own_ns"))
    times: dict[str, list[tuple[str, int, float]]] = {}
    for row in found.rows:
        times.setdefault(str(row[phase]), []).append((str(row[host]), int(row[rank] or 0), float(row[own] or 0)))
    names = _columns([(name, number) for name, number, _ in next(iter(times.values()))])
    marks: list[Mark] = []
    for name, each in times.items():
        middle = median(ns for *_, ns in each)
        slowest: dict[str, float] = {}
        for (*_, ns), column in zip(each, names, strict=True):
            slowest[column] = max(slowest.get(column, 0.0), ns - middle)
        for column, ns in slowest.items():
            words = said(f"{column} · {name}, over the median", ns)
            marks.append({"row": name, "column": column, "ms": ns / _MS, "said": words})
    return charts.heat(marks, list(times), list(dict.fromkeys(names)))


def _columns(ranks: list[tuple[str, int]]) -> list[str]:
    """The column that each (host, rank) stands in."""
    if len(ranks) <= _MOST_COLUMNS:
        return [f"{number}" for _, number in ranks]
    hosts = list(dict.fromkeys(host for host, _ in ranks))
    if all(hosts) and len(hosts) <= _MOST_COLUMNS:
        return [host for host, _ in ranks]
    each = -(-len(ranks) // _MOST_COLUMNS)
    return [f"from {ranks[at - at % each][1]}" for at in range(len(ranks))]
