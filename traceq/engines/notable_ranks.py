"""Ranks of a large job that are worth looking at, and the rows of a sheet without those that others stand for.

Worth looking at are the slowest, median and fastest, stragglers, and both sides of a desync.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from traceq.engines.analyze_path import SMALL, analyze_path
from traceq.engines.rank_reader import Start
from traceq.frozen import frozen
from traceq.locations import place
from traceq.model import Caveat
from traceq.report import Cell, Report, Sheet, Table
from traceq.runs.read import parse_ranks, trace_files

_MOST_WITH_ROWS = 64
"""Ranks up to which each has its rows."""
_MOST_CLUSTERS = 16
_OF_JOB = ("job_path", "caused_waits")
"""Tables about all ranks together, though their rows name one."""
_MOST_NAMED = 8
"""Rows with the key of a finding that are kept where no rank that is kept has one."""

MOST_RANKS = 8
"""Ranks up to which a job is not large: all are worth looking at."""
_MOST_OF_A_KIND = 2


@frozen
class NotableRanks:
    """Some of `num_ranks` ranks, each with why it is worth looking at, the most notable first."""

    num_ranks: int
    why: dict[int, tuple[str, ...]]

    def __str__(self) -> str:
        each = ", ".join(f"{rank} ({', '.join(why)})" for rank, why in self.why.items())
        return f"{len(self.why)} of {self.num_ranks:,} ranks are shown: {each}; --ranks chooses others"


def notable_ranks(
    path: str,
    *,
    start: Start,
    small: int = SMALL,
    on_progress: Callable[[int, int], None] = lambda ended, planned: None,
) -> NotableRanks | None:
    """Return the ranks of a folder that are worth looking at; None where all of them are. Raises UnreadableInput."""
    folder = place(path)
    if not folder.is_dir() or len(trace_files(folder)) <= MOST_RANKS:
        return None
    analyzed = analyze_path(path, ("ranks", "desync"), start=start, small=small, on_progress=on_progress)
    if len(analyzed.job.ranks) <= MOST_RANKS:
        return None
    return NotableRanks(len(analyzed.job.ranks), _reasons_to_look(analyzed.reports))


def _reasons_to_look(of_all: Sequence[Report]) -> dict[int, tuple[str, ...]]:
    """Return the ranks that are worth looking at, each with why, by the reports of `ranks` and `desync`."""
    reports = {report.name: report for report in of_all}
    rows: list[dict[str, Any]] = sorted(reports["ranks"].table("ranks").to_dicts(), key=_own_ns)
    if not rows:
        return {}
    why: dict[int, list[str]] = {}
    reasons: tuple[tuple[str, list[int]], ...] = (
        ("slowest", [rows[-1]["rank"]]),
        ("straggler", [row["rank"] for row in rows[::-1] if row["verdict"] == "straggler"]),
        *_sides_of_desync(reports["desync"].table("desync").to_dicts()),
        ("median", [rows[len(rows) // 2]["rank"]]),
        ("fastest", [rows[0]["rank"]]),
    )
    for reason, ranks in reasons:
        for rank in ranks[:_MOST_OF_A_KIND]:
            why.setdefault(rank, []).append(reason)
    return {rank: tuple(each) for rank, each in why.items()}


def _own_ns(row: dict[str, Any]) -> float:
    """Return the step of a rank without its exposed waits: all ranks of a job take equally long."""
    own_ns: float = row["step_ns"] - (row["exposed_wait_ns"] or 0) / max(row["num_steps"], 1)
    return own_ns


def _sides_of_desync(rows: list[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    """Return the ranks that issue another collective than their group, and those that issue its own."""
    odd = [row["rank"] for row in rows if row["how"]]
    return [("desync", odd), ("not desynced", [row["rank"] for row in rows if not row["how"]][:1])]


def without_like_ranks(sheet: Sheet) -> Sheet:
    """Return a sheet of all analyses with the rows of a few ranks where it is of more than 64, else the same.

    Those are the rank in the middle of each cluster, of the largest and then the latest, and the ranks that stand out
    or that a finding is about; also rows that a finding names and none of these has. Tables about all ranks together
    stay whole.
    """
    if len(sheet.source.ranks) <= _MOST_WITH_ROWS:
        return sheet
    named = {finding.key for finding in sheet.findings}
    about = {row["rank"] for row in _rows(sheet, "ranks", "ranks") if row["key"] in named}
    kept = {*about, *_reasons_to_look(sheet.reports), *_middles(sheet)}
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
