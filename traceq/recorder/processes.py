"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import signal
import sys

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1


def die_with_parent(*_: object) -> None:
    """Ask the kernel to kill this process when its parent is gone, even by SIGKILL. Only Linux can; else nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
