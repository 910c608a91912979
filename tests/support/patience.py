"""Timeouts that grow with how slow and how busy the machine is right now."""

from __future__ import annotations

import os
import time

__all__ = ["patient"]

_LOOPS = 400_000
_QUIET_S = 0.03
"""What the loop below takes on a quiet core of 2018 or newer, rounded up."""
_MOST = 10.0


def patient(seconds: float) -> float:
    """Return the timeout for what takes `seconds` at most on a quiet machine: up to ten times as much on a slow one.

    The factor is the larger of two: the wall time of a fixed piece of Python over that on a quiet core, and the number
    of processes that want a core over the number of cores.
    """
    start = time.perf_counter()
    for _ in range(_LOOPS):
        pass
    slow = (time.perf_counter() - start) / _QUIET_S
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * min(_MOST, max(1.0, slow, busy))
