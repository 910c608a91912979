"""The cores that this process may use."""

from __future__ import annotations

import os

__all__ = ["num_cores"]


def num_cores() -> int:
    """Return their number, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
