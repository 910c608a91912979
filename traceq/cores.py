"""The cores and the memory that this process may use."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


def num_cores() -> int:
    """Return their number, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def memory_bytes() -> int:
    """Return the bytes of the memory of this machine, or container; a number beyond any where no system says it."""
    limit = memory_of_container()[0] or 1 << 62
    try:
        return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), limit)
    except (AttributeError, ValueError, OSError):
        return limit


def memory_of_container() -> tuple[int, int]:
    """Return (limit, used) bytes of the container, of the two versions of cgroups; (0, 0) without one."""
    files = "memory.max", "memory.current", "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"
    for names in (files[:2], files[2:]):
        try:
            limit, used = (Path("/sys/fs/cgroup", name).read_text(encoding="ascii").strip() for name in names)
        except OSError:
            continue
        if limit.isdigit() and int(limit) < 1 << 60:
            return int(limit), int(used)
    return 0, 0
