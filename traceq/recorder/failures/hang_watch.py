"""Ranks that traceq did not start, and of which none makes progress: it says where each stands, and ends none."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from traceq.recorder.failures.rank_stands import describe_stands, rank_stands
from traceq.recorder.process.watched_rank import SeenRank, seen_ranks
from traceq.runs.run_folder import RunFolder, atomic_write

__all__ = ["HangWatch", "forget_hang"]

_POLL_S = 1.0


class HangWatch:
    """Says where the ranks stand if none has ended a step or begun a phase for `hang_s` seconds; 0: never.

    `ranks`: the folder through which they are watched (`WatchedRank`). While they stand it says so again whenever the
    time has doubled, and `folder.hang` holds what it said last: the reason, if the job then ends.
    """

    def __init__(self, ranks: Path, folder: RunFolder, hang_s: float) -> None:
        self._ranks, self._folder, self._hang_s = ranks, folder, hang_s
        self._seen: list[SeenRank] = []
        self._last_look = self._since = time.monotonic()
        self._next_s = hang_s
        self._last_stands: list[str] = []

    def look(self) -> list[str]:
        """Look at the ranks, at most once a second, and return the lines to print."""
        now = time.monotonic()
        if not self._hang_s or now - self._last_look < min(_POLL_S, self._hang_s / 4):
            return []
        self._last_look = now
        seen, before = seen_ranks(self._ranks), {rank.pid: rank.num_events for rank in self._seen}
        stood_s, self._seen = now - self._since, seen
        if any(rank.num_events != before.get(rank.pid) for rank in seen) or not seen:
            has_reported = self._next_s > self._hang_s
            self._since, self._next_s, self._last_stands = now, self._hang_s, []
            if not has_reported or not seen:  # ranks that left made no progress
                return []
            forget_hang(self._folder)
            return [f"traceq: steps go on after {stood_s:.0f} s"]
        if stood_s < self._next_s:
            return []
        self._next_s = 2 * stood_s
        stands_before, self._last_stands = self._last_stands, describe_stands(rank_stands(seen))
        line, *stacks = self._last_stands
        line = f"no step for {stood_s:.0f} s: {line}"
        self._keep("\n".join([line, *stacks, ""]))
        if stands_before == self._last_stands:
            return [f"traceq: {line}"]
        return [f"traceq: {line}", *stacks, "traceq: the job may be slow, and is not ended; Ctrl-C ends it"]

    def _keep(self, text: str) -> None:
        with suppress(OSError):
            self._folder.hang.parent.mkdir(exist_ok=True)
            with atomic_write(self._folder.hang) as part:
                part.write_text(text, encoding="utf-8")


def forget_hang(folder: RunFolder) -> None:
    """Take back what was said of ranks that made no progress: they did."""
    with suppress(OSError):
        folder.hang.unlink()
        folder.hang.parent.rmdir()
