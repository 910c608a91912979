"""Ranks of a large job that are worth looking at: slowest, median, fastest, stragglers, and both sides of a desync."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from traceq.engines.analyze_path import SMALL, analyze_path
from traceq.engines.engine import Start
from traceq.frozen import frozen
from traceq.locations import place
from traceq.report import Report
from traceq.runs.read import trace_files

__all__ = ["MOST_RANKS", "NotableRanks", "notable_ranks", "reasons_to_look"]

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
    return NotableRanks(len(analyzed.job.ranks), reasons_to_look(analyzed.reports))


def reasons_to_look(of_all: Sequence[Report]) -> dict[int, tuple[str, ...]]:
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
