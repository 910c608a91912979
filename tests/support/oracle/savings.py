"""What findings say that a step saves without some waits, by the replay of one file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from .holds import Hold
from .replay import Replay
from .spans import Span
from .sync_rows import SyncRows
from .syncs import Sync

__all__ = ["CODES", "Savings"]

OF_ALLOCATIONS = {"allocator_retries"}
CODES = {"costly_sync", "costly_allocation", "free_sync", "joint_syncs", "pageable_copies", *OF_ALLOCATIONS}


class Savings:
    """The replay of a file, and the rows of its syncs.

    `left_out` are names of steps that another rank has in part; on the spans `once` the host does what is once.
    """

    def __init__(self, path: Path, left_out: Collection[str] = (), once: Collection[Span] = ()) -> None:
        self.replay = Replay(path, once)
        for step in self.replay.steps:
            step["partial"] |= step["name"] in left_out
        self.rows = SyncRows(self.replay.trace, self.replay.phases, self.replay.hidden, self.replay.opens)
        syncs = [hold.sync for hold in self.replay.holds if hold.sync]
        self.kept = {
            id(sync) for sync in self.rows.kept(syncs, [hold.start for hold in self.replay.holds if hold.is_removable])
        }

    @property
    def partial(self) -> set[str]:
        """Names of the steps that are not whole."""
        return {step["name"] for step in self.replay.steps if step["partial"]}

    def saved_ns(self, code: str, key: str = "") -> float:
        """Ns by which the mean counted step is shorter without the waits that a finding is about."""
        return self.replay.saved_ns(lambda hold: self._is_of(hold, code, key))

    def _is_of(self, hold: Hold, code: str, key: str) -> bool:
        if hold.sync is None or id(hold.sync) not in self.kept:
            return False
        if code == "pageable_copies":
            return is_pageable(hold.sync)
        if code in OF_ALLOCATIONS:
            return hold.sync.kind == "alloc"
        return code == "joint_syncs" or is_of_place(self.rows.key(hold.sync), key)


def is_of_place(row: str, key: str) -> bool:
    """Whether the key of a row is that of a finding, which leaves empty what rows of its line, or op, differ in."""
    _, op, line, *_ = key.split("|", 4)
    same = [not wanted or wanted == text for wanted, text in zip(key.split("|", 4), row.split("|", 4), strict=True)]
    return row == key if not (op or line) else all(same)


def is_pageable(sync: Sync) -> bool:
    return sync.kind == "htod" and sync.copy is not None and "pageable" in sync.copy.name.lower()
