"""Ranks of an external launcher and their watcher: a process on each host, which also sees a rank that was stopped."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from traceq.errors import TraceqError
from traceq.recorder.failures.hang_watch import forget_hang
from traceq.recorder.process.progress_counters import ProgressCounters, WatchedRank
from traceq.recorder.process.world import World
from traceq.recorder.spec.plan import Plan

_WATCHER = "traceq.recorder.failures.hang_watch"


@contextmanager
def watched_loop(plan: Plan, world: World) -> Iterator[ProgressCounters]:
    """Yield this rank's counters, of which its host's watcher says on stderr when they stand still; see `HangWatch`.

    All ranks call it. The first rank of each host starts the watcher, which ends with that rank.
    """
    if not plan.hang_s:
        yield ProgressCounters("", 0)
        return
    host = world.peers[world.rank].host
    leader = next(rank for rank, peer in enumerate(world.peers) if peer.host == host)
    folders = world.gather(tempfile.mkdtemp(prefix="traceq-") if leader == world.rank else "")
    watched = WatchedRank(folders[leader], world.rank)
    watcher = _start(folders[leader], plan) if leader == world.rank else None

    process = os.getpid()

    def close() -> None:
        if os.getpid() != process:  # a child that the loop forked
            return
        atexit.unregister(close)
        watched.close()
        if watcher is not None:
            watcher.kill()
            watcher.wait()
            shutil.rmtree(folders[leader], ignore_errors=True)
            with suppress(TraceqError):  # the folder may be gone
                if plan.folder.is_complete:
                    forget_hang(plan.folder)

    atexit.register(close)  # a trainer's callback may never be told that the training ended
    try:
        yield watched.counters
    finally:
        close()


def _start(folder: str, plan: Plan) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", _WATCHER, str(os.getpid()), folder, str(plan.folder.path), str(plan.hang_s)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
