"""How a watched run is: its ranks, their steps now and in the run so far, and what began."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from traceq.frozen import frozen
from traceq.report import Table, column
from traceq.units import Unit
from traceq.watch.onsets import Onset
from traceq.watch.step_store import REGULAR, TIMES, last_rows, quantile, read_sketches
from traceq.watch.watch_folder import WatchFolder

_RECENT_S = 60.0


@frozen
class RankStatus:
    """A rank: medians of its steps in the last minute, and of the run before; ns."""

    rank: int = column("rank", Unit.NUMBER)
    host: str = column("host")
    step: int = column("step", Unit.COUNT)
    age_s: float = column("ended, s ago", Unit.NUMBER)
    step_ns: float | None = column("step", Unit.NS)
    before_ns: float | None = column("before", Unit.NS)
    p99_ns: float | None = column("p99", Unit.NS)
    loader_ns: float | None = column("loader", Unit.NS)
    forward_ns: float | None = column("forward", Unit.NS)
    backward_ns: float | None = column("backward", Unit.NS)
    optimizer_ns: float | None = column("optimizer", Unit.NS)
    gc_ns: float | None = column("collector", Unit.NS)
    memory_bytes: float | None = column("memory", Unit.BYTES)


@frozen
class Status:
    """A watched run."""

    path: str
    pattern: str
    ranks: tuple[RankStatus, ...]
    onsets: tuple[Onset, ...]

    @property
    def table(self) -> Table:
        """Its ranks."""
        return Table.of("ranks", f"{self.path}: steps {self.pattern}", RankStatus, self.ranks)


def read_status(path: Path) -> Status:
    """Return how a run is. Raises UnreadableInput for a folder that is none of a watched run."""
    folder = WatchFolder(path)
    job = folder.read_job()
    ranks = tuple(_rank_status(folder, rank, host) for rank, host in enumerate(job.hosts))
    return Status(str(path), job.pattern, ranks, tuple(folder.read_onsets()))


def _rank_status(folder: WatchFolder, rank: int, host: str) -> RankStatus:
    rows, sketches = last_rows(folder.steps, rank), read_sketches(folder.steps, rank)
    last_s = float(rows["time"][-1]) if len(rows) else float("nan")
    recent = rows[(rows["time"] > last_s - _RECENT_S) & (rows["flags"] == REGULAR)]
    memory = rows["memory"][~np.isnan(rows["memory"])]
    before = sketches["counts"].sum(axis=0, dtype=np.uint32)[TIMES.index("wall")] if len(sketches) else None
    means = {
        f"{name}_ns": 1e9 * float(recent[name].mean()) if len(recent) else None
        for name in ("loader", "forward", "backward", "optimizer", "gc")
    }
    return RankStatus(
        rank=rank,
        host=host,
        step=int(rows["step"][-1]) if len(rows) else 0,
        age_s=round(time.time() - last_s, 1) if len(rows) else 0.0,
        step_ns=1e9 * float(np.median(recent["wall"])) if len(recent) else None,
        before_ns=None if before is None else 1e9 * quantile(before, 0.5),
        p99_ns=None if before is None else 1e9 * quantile(before, 0.99),
        memory_bytes=float(memory[-1]) if len(memory) else None,
        **means,
    )
