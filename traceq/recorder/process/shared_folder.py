"""One folder for the ranks of all hosts."""

from __future__ import annotations

import time
from pathlib import Path

from traceq.errors import TraceqError
from traceq.recorder.process.world import World

__all__ = ["check_shared"]

_VISIBLE_S = 10.0  # a network file system may take its time


def check_shared(folder: Path, world: World) -> None:
    """TraceqError on every rank unless all of them see the folder that rank 0 has made."""
    until = time.monotonic() + _VISIBLE_S
    while not folder.is_dir() and time.monotonic() < until:
        time.sleep(0.05)
    blind = [rank for rank, sees in enumerate(world.gather(folder.is_dir())) if not sees]
    if blind:
        rank, host = blind[0], world.peers[blind[0]].host
        raise TraceqError(
            f"{folder}: rank {rank} on {host} does not see this folder of rank 0 on {world.peers[0].host}; "
            "all ranks need a file system that they share, and one working directory or an absolute path"
        )
