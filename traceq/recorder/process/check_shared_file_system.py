"""Check that the ranks of all hosts see the run's folder."""

from __future__ import annotations

import time
from pathlib import Path

from traceq.errors import TraceqError
from traceq.recorder.process.world import World

__all__ = ["check_shared"]

_VISIBLE_WITHIN_S = 10.0  # network file systems propagate new folders with a delay


def check_shared(folder: Path, world: World) -> None:
    """Raise TraceqError on every rank unless all ranks see the folder that rank 0 created."""
    deadline = time.monotonic() + _VISIBLE_WITHIN_S
    while not folder.is_dir() and time.monotonic() < deadline:
        time.sleep(0.05)
    blind = [rank for rank, sees in enumerate(world.gather(folder.is_dir())) if not sees]
    if blind:
        rank, host = blind[0], world.peers[blind[0]].host
        raise TraceqError(
            f"{folder}: rank {rank} on {host} cannot see this folder, which rank 0 created on {world.peers[0].host}; "
            "all ranks need a shared file system, and the same working directory or an absolute path"
        )
