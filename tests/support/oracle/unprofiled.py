"""What unprofiled steps say, from the journals of a run's ranks, line by line."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["loading_ns", "outside_phases_ns"]


def outside_phases_ns(run: Path, arm: str) -> float:
    """Time of a counted step that is in none of its phases, on the rank where its share is largest, ns."""
    return largest_ns(run, arm, lambda step: step["wall_ns"] - sum(step["phases"].values()))


def loading_ns(run: Path, arm: str) -> float:
    """Time of a counted step in the data loader, on the rank where its share is largest, ns."""
    return largest_ns(run, arm, lambda step: step["phases"]["dataload_wait"])


def largest_ns(run: Path, arm: str, time_of: Callable[[dict[str, Any]], int]) -> float:
    """A time of the mean counted step, on the rank where its share is largest."""
    shares = []
    for journal in sorted((run / "steps").glob("rank*.jsonl")):
        steps = counted(journal, arm)
        ns = sum(map(time_of, steps))
        shares.append((ns / sum(step["wall_ns"] for step in steps), ns / len(steps)))
    return max(shares)[1]


def counted(journal: Path, arm: str) -> list[dict[str, Any]]:
    """The steps of an arm in pairs, of each half with several all but the first."""
    halves: dict[tuple[str, str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for line in journal.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["kind"] == "step" and entry["arm"] == arm and entry["pair"] >= 0:
            halves[entry["a"], entry["b"], entry["pair"], entry["half"]].append(entry)
    return [step for half in halves.values() for step in (half[1:] or half)]
