"""What /proc says of a process."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cpu_s", "is_alive", "is_stopped", "stat_fields", "state"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def state(pid: int) -> str:
    """Return R, S, D, T, t or Z: runs, sleeps, waits for a disk or a driver, was stopped, is traced, has ended.

    "" if there is no such process, or no /proc.
    """
    return next(iter(stat_fields(Path(f"/proc/{pid}/stat"))), "")


def is_alive(pid: int) -> bool:
    """Return False if there is no such process, or it has ended and its parent has not noticed."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return state(pid) != "Z"


def is_stopped(pid: int) -> bool:
    """Return True for a process that a signal has stopped."""
    return state(pid) == "T"


def cpu_s(fields: list[str], *, with_children: bool = False) -> float:
    """Return the CPU time of a process so far, s, of its `stat_fields`."""
    return sum(map(int, fields[11 : 15 if with_children else 13])) / _TICKS_PER_S


def stat_fields(path: Path) -> list[str]:
    """Return the fields after the name of a process: its state, parent, group, ...; empty if it is gone."""
    try:
        return path.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
