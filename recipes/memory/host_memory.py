"""Host memory of a rank and its loader workers, and the batches that the loader has prefetched."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HostMemory", "host_memory", "reset_peaks"]

_PEAK = re.compile(r"^VmHWM:\s*(\d+) kB", re.MULTILINE)
_SHARED = "/dev/shm/torch_"
_BLOCK = 512  # unit of `st_blocks`, whatever the block size of the file system


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory in bytes; all 0 on systems without /proc (other than Linux).

    `rank` and `workers` (all of them together) are peaks since `reset_peaks`; `shared` is the shared memory in use now,
    by batches in use and prefetched batches.
    """

    rank: int
    workers: int
    shared: int


def reset_peaks() -> None:
    """Reset the peaks of the current process and of its workers."""
    for process in _processes():
        with suppress(OSError):
            (process / "clear_refs").write_text("5")


def host_memory() -> HostMemory:
    """Return the peaks since `reset_peaks` and the shared memory in use now."""
    rank, *workers = (_peak(process) for process in _processes())
    files = {file for process in _processes() for file in _shared_files(process)}
    return HostMemory(rank, sum(workers), sum(size for _, size in files))


def _processes() -> list[Path]:
    """Return the /proc folders of the current process, then of its workers."""
    return [
        Path("/proc") / str(pid) for pid in (os.getpid(), *(child.pid for child in multiprocessing.active_children()))
    ]


def _peak(process: Path) -> int:
    with suppress(OSError):
        if match := _PEAK.search((process / "status").read_text()):
            return 1024 * int(match[1])
    return 0


def _shared_files(process: Path) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield ((device, inode), bytes) of each shared memory file torch has open there; processes may share a file."""
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                if os.readlink(descriptor).startswith(_SHARED):
                    stat = descriptor.stat()
                    yield (stat.st_dev, stat.st_ino), _BLOCK * stat.st_blocks
