"""Ranks of which none makes progress: no step ends, no phase begins, and none computes, loads or compiles."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from traceq.recorder.process.process_state import cpu_s, stat_fields
from traceq.recorder.process.progress_counters import Progress, read_counters
from traceq.recorder.spec.plan import Plan

__all__ = ["StallWatch"]

_POLL_S = 1.0
_SETTLED_S = 2.0
_BUSY_SHARE = 0.05  # of a core; threads of torch that only wait take less


class StallWatch:
    """Tells, each time it is asked, whether no rank has made progress for `plan.hang_s` seconds; 0: never.

    A rank that takes CPU time, by itself or in its children, or reads from a disk makes progress: it may compile or
    load. Without /proc every rank does.
    """

    __slots__ = ("_bound_s", "_counters", "_cpu_s", "_last_look", "_path", "_processes", "_since")

    def __init__(self, processes: Sequence[Popen[bytes]], plan: Plan) -> None:
        self._processes = processes
        self._bound_s = plan.hang_s
        self._path = Path(plan.progress_path)
        self._since = self._last_look = time.monotonic()
        self._counters: Sequence[Progress] = ()
        self._cpu_s: list[float] = []

    def has_stalled(self) -> bool:
        """Look at the ranks, at most once a second; /proc only once their counters stand still."""
        now = time.monotonic()
        if not self._bound_s or now - self._last_look < _POLL_S:
            return False
        elapsed_s, self._last_look = now - self._last_look, now
        counters = read_counters(self._path)
        if counters != self._counters:
            self._counters, self._cpu_s, self._since = counters, [], now
            return False
        if now - self._since < min(_SETTLED_S, self._bound_s):
            return False
        groups = [_group(process.pid) for process in self._processes]
        before, self._cpu_s = self._cpu_s, [group.cpu_s for group in groups]
        if not before:  # the first look has nothing to compare with
            return False
        took_s = (after - earlier for earlier, after in zip(before, self._cpu_s, strict=True))
        if any(group.waits_for_disk for group in groups) or max(took_s) > _BUSY_SHARE * elapsed_s:
            self._since = now
        return now - self._since >= self._bound_s


@dataclass(frozen=True, slots=True)
class _Group:
    """CPU time of a rank and its children so far, s, and whether one of them waits for a disk."""

    cpu_s: float
    waits_for_disk: bool


def _group(pid: int) -> _Group:
    """Return what /proc says of the processes of a group."""
    total_s, waits_for_disk, was_found = 0.0, False, False
    for stat in Path("/proc").glob("[0-9]*/stat"):
        fields = stat_fields(stat)
        if len(fields) > 15 and fields[2] == str(pid):
            was_found = True
            total_s += cpu_s(fields, with_children=True)
            waits_for_disk |= fields[0] == "D"
    return _Group(total_s, waits_for_disk or not was_found)
