"""What a rank and its loader's workers take of the host's memory, and what the loader has finished ahead of its use."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HostMemory", "forget_peaks", "host_memory"]

_PEAK = re.compile(r"^VmHWM:\s*(\d+) kB", re.MULTILINE)
_SHARED = "/dev/shm/torch_"
_BLOCK = 512  # bytes of one of `st_blocks`, whatever the file system's own


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes: most that the rank held, and its workers together, since `forget_peaks`; and what lies in shared memory
    now, batches in use and batches that wait for it. All 0 where the system does not tell (other than Linux).
    """

    rank: int
    workers: int
    shared: int


def forget_peaks() -> None:
    """Let the peaks of this process and of its workers begin anew."""
    for process in _processes():
        with suppress(OSError):
            (process / "clear_refs").write_text("5")


def host_memory() -> HostMemory:
    """As it is now."""
    rank, *workers = (_peak(process) for process in _processes())
    files = {file for process in _processes() for file in _shared_files(process)}
    return HostMemory(rank, sum(workers), sum(size for _, size in files))


def _processes() -> list[Path]:
    """This process, then its workers."""
    return [
        Path("/proc") / str(pid) for pid in (os.getpid(), *(child.pid for child in multiprocessing.active_children()))
    ]


def _peak(process: Path) -> int:
    with suppress(OSError):
        if found := _PEAK.search((process / "status").read_text()):
            return 1024 * int(found[1])
    return 0


def _shared_files(process: Path) -> Iterator[tuple[tuple[int, int], int]]:
    """((device, inode), bytes) of every piece of shared memory that torch has open there; several may have one open."""
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                if os.readlink(descriptor).startswith(_SHARED):
                    told = descriptor.stat()
                    yield (told.st_dev, told.st_ino), _BLOCK * told.st_blocks
