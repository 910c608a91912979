"""What a process that reads traces can do without: pages zeroed again and again, and threads for linear algebra."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

__all__ = ["keep_freed_memory", "tune_process"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_LARGEST_COLUMN, _MOST_KEPT = 1 << 30, (1 << 31) - 1


def tune_process(paths: Sequence[str]) -> None:
    """For a process that has not imported numpy yet: this one and those it starts have no threads for linear algebra.

    OpenBLAS starts one a core, which spin for some 25 ms each: of 64 processes on as many cores 100 s of CPU time.
    A path that is a file is read in this process; the ranks of a folder are small, or have processes of their own.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if any(map(os.path.isfile, paths)):
        keep_freed_memory()


def keep_freed_memory() -> None:
    """For the rest of this process, memory that was freed is used again. Does nothing where the C library is no glibc.

    An analysis makes and drops hundreds of columns of a few MB. glibc gives each back and has all its pages zeroed
    anew, which takes a tenth of the time of all analyses together; keeping them adds next to nothing to the peak.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS and musl have none, Windows has no CDLL(None)
        return
    if mallopt(_MMAP_THRESHOLD, _LARGEST_COLUMN):  # the second without the first would be far worse than neither
        mallopt(_TRIM_THRESHOLD, _MOST_KEPT)
