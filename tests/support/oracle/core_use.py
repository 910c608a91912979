"""Who keeps a thread of the step waiting for a core, from the `cores` lines of the ranks' journals."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CoreTimes", "core_times"]


@dataclass(frozen=True)
class CoreTimes:
    """A mean step of a rank: `wait_ns` of the thread that waits longest; shares of the step; `others` in cores."""

    wait_ns: float
    waits: float
    worker_busy: float
    worker_runnable: float
    others: float | None


def core_times(run: Path, hosts: list[str]) -> CoreTimes:
    """What the journals of a run say; rank r ran on `hosts[r]`, and the busiest host has the `others`."""
    journals = sorted((run / "steps").glob("rank*.jsonl"), key=lambda path: int(path.stem.removeprefix("rank")))
    of_ranks = [cores_lines(journal) for journal in journals]
    blocks = [block for rank in of_ranks for block in rank]
    steps, elapsed = total(blocks, "num_steps"), total(blocks, "wall_ns")
    workers = max(block["num_workers"] for block in blocks)
    lifetime = workers * elapsed
    computing = total(blocks, "worker_ns")
    runnable = computing + total(blocks, "worker_wait_ns")
    return CoreTimes(
        wait_ns=total(blocks, "thread_wait_ns") / steps,
        waits=total(blocks, "thread_wait_ns") / elapsed,
        worker_busy=computing / lifetime if lifetime else 0,
        worker_runnable=runnable / lifetime if lifetime else 0,
        others=others(of_ranks, hosts),
    )


def others(of_ranks: list[list[dict[str, Any]]], hosts: list[str]) -> float | None:
    """Cores that processes outside the job keep busy on the busiest host; None where no journal knows."""
    by_host: dict[str, list[list[dict[str, Any]]]] = defaultdict(list)
    for host, rank in zip(hosts, of_ranks, strict=True):
        by_host[host].append(rank)
    cores = []
    for ranks in by_host.values():
        if any(block["machine_ns"] == 0 for rank in ranks for block in rank):
            continue
        busy = job = 0.0
        for rank in ranks:  # each rank timed the whole machine during its own blocks
            busy += total(rank, "machine_ns") / total(rank, "wall_ns") / len(ranks)
            job += (total(rank, "process_ns") + total(rank, "worker_ns")) / total(rank, "wall_ns")
        cores.append(max(busy - job, 0))
    return max(cores, default=None)


def cores_lines(journal: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    return [entry for entry in entries if entry["kind"] == "cores"]


def total(blocks: list[dict[str, Any]], key: str) -> int:
    return sum(block[key] for block in blocks)
