"""The cores that this process may use, and the memory of the machine."""

from __future__ import annotations

import os

__all__ = ["memory_bytes", "num_cores"]


def num_cores() -> int:
    """Return their number, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Return the bytes of this machine's memory; a number beyond any where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62
