"""Rows of a sheet of many ranks without those of ranks that others stand for: its size does not grow with the job."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from traceq.engines.notable_ranks import reasons_to_look
from traceq.model import Caveat
from traceq.report import Cell, Sheet, Table
from traceq.runs.rank_selection import parse_ranks

__all__ = ["MOST_RANKS", "without_like_ranks"]

MOST_RANKS = 64
"""Ranks up to which each has its rows."""
_MOST_CLUSTERS = 16
_OF_JOB = ("job_path", "caused_waits")
"""Tables about all ranks together, though their rows name one."""
_MOST_NAMED = 8
"""Rows with the key of a finding that are kept where no rank that is kept has one."""


def without_like_ranks(sheet: Sheet) -> Sheet:
    """Return a sheet of all analyses with the rows of a few ranks where it is of more than `MOST_RANKS`, else the same.

    Those are the rank in the middle of each cluster, of the largest and then the latest, and the ranks that stand out
    or that a finding is about; also rows that a finding names and none of these has. Tables about all ranks together
    stay whole.
    """
    if len(sheet.source.ranks) <= MOST_RANKS:
        return sheet
    named = {finding.key for finding in sheet.findings}
    about = {row["rank"] for row in _rows(sheet, "ranks", "ranks") if row["key"] in named}
    kept = {*about, *reasons_to_look(sheet.reports), *_middles(sheet)}
    reports = tuple(
        replace(report, tables=tuple(_short(table, kept, named) for table in report.tables)) for report in sheet.reports
    )
    text = (
        f"tables have the rows of {len(kept)} of {len(sheet.source.ranks):,} ranks: the one in the middle of each "
        "cluster, and those that stand out; --full has all"
    )
    source = replace(sheet.source, rows_of=tuple(sorted(kept)))
    return replace(sheet, source=source, reports=reports, caveats=(*sheet.caveats, Caveat("like_ranks", text)))


def _middles(sheet: Sheet) -> Iterator[int]:
    """Yield of each cluster the rank whose own time is the median of its ranks."""
    own_ns: dict[int, int] = {}
    for row in _rows(sheet, "clusters", "rank_phases"):
        own_ns[row["rank"]] = own_ns.get(row["rank"], 0) + row["own_ns"]
    for cluster in _rows(sheet, "clusters", "clusters")[:_MOST_CLUSTERS]:
        ranks = sorted(parse_ranks(cluster["ranks"]) or (), key=own_ns.__getitem__)
        yield ranks[(len(ranks) - 1) // 2]


def _rows(sheet: Sheet, name: str, key: str) -> list[dict[str, Any]]:
    """Return the rows of a table of a report."""
    return sheet.report(name).table(key).to_dicts()


def _short(table: Table, kept: Collection[int], named: Collection[str]) -> Table:
    """Return the rows of the ranks that are kept; of no such rank, the first with the key of a finding."""
    keys = [column.key for column in table.columns]
    if "rank" not in keys or table.key in _OF_JOB:
        return table
    rank, key = keys.index("rank"), keys.index("key") if "key" in keys else None
    chosen: list[tuple[Cell, ...]] = []
    others: dict[Cell, list[tuple[Cell, ...]]] = {}
    for row in table.rows:
        if row[rank] in kept:
            chosen.append(row)
        elif key is not None and row[key] in named and len(others.setdefault(row[key], [])) < _MOST_NAMED:
            others[row[key]].append(row)
    has_row = {row[key] for row in chosen} if key is not None else set()
    chosen += [row for name, rows in others.items() if name not in has_row for row in rows]
    return replace(table, rows=chosen)
