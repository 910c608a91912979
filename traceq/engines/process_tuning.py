"""Settings of a process that belongs to traceq: the command line. A library call changes none of them."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Sequence

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST_ARENAS = -1, -3, -8  # of mallopt(3)
_GARBAGE = 100_000  # objects: a process that soon ends would look for cycles a hundred times and find next to none
_LARGEST_COLUMN, _MOST_KEPT = 1 << 30, (1 << 31) - 1
_LARGE_BLOCK = (32 << 20) - 4096  # the largest that moves glibc's threshold


def collect_rarely() -> None:
    """Have Python look for reference cycles a hundred times less often, and not once more as this process ends."""
    gc.set_threshold(_GARBAGE)
    atexit.register(gc.freeze)


def raise_mmap_threshold() -> None:
    """Free one large block, after which glibc keeps the pages of smaller ones for the rest of this process."""
    bytes(_LARGE_BLOCK)


def tune_process(paths: Sequence[str]) -> None:
    """Give this process, which has not imported numpy, and those it starts no threads for linear algebra.

    OpenBLAS starts one thread per core, each of which spins for some 25 ms: of 64 processes on 64 cores 100 s of CPU
    time. Where one of the paths is a file, which is read in this process, memory that was freed is kept, too; the ranks
    of a folder are small, or are read by other processes.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if any(map(os.path.isfile, paths)):
        keep_freed_memory()


def keep_freed_memory(most_bytes: int = _MOST_KEPT) -> None:
    """Use memory that was freed again, for the rest of this process; without effect where the C library is not glibc.

    Where more than `most_bytes` are free, they are given back.

    An analysis makes and drops hundreds of columns of a few MB. glibc gives each back and has all its pages zeroed
    anew, which takes a tenth of the time of all analyses together; keeping them adds next to nothing to the peak. What
    one thread freed, another uses.
    """
    import ctypes  # the commands that do not read traces start without it

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS and musl have none, Windows has no CDLL(None)
        return
    if mallopt(_MMAP_THRESHOLD, _LARGEST_COLUMN):  # the second without the first would be far worse than neither
        mallopt(_TRIM_THRESHOLD, most_bytes)
        mallopt(_MOST_ARENAS, 1)
