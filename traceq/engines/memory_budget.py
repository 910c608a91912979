"""How much memory there is, and how much of it the reading of a rank takes."""

from __future__ import annotations

import os
from pathlib import Path

from traceq.locations import Place, Remote

__all__ = ["free_bytes", "needed_bytes", "plain_bytes"]

_PER_BYTE, _BARE = 1.5, 100_000_000
"""What a worker takes for each byte of an uncompressed trace, and before it has read anything: half as much again as
was seen on traces of 30 to 110 MB."""
_PACKED = 12
"""How many times as large a trace is than its gzip file, where that does not tell."""
_UNKNOWN = 4_000_000_000
_LARGE = 500_000_000
_GZIP, _ZSTD, _LARGEST_TOLD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", 2**28


def free_bytes() -> int:
    """Memory that may be used without swapping, within the limits of a container; 4 GB where nobody tells."""
    told = [_meminfo(), *(limit - used for limit, used in (_cgroup(2), _cgroup(1)) if limit)]
    return max(min((free for free in told if free is not None), default=_UNKNOWN), 0)


def needed_bytes(file: Place) -> int:
    """What the process that reads a trace needs at most, by the size of the file."""
    return int(_PER_BYTE * plain_bytes(file)) + _BARE


def plain_bytes(file: Place) -> int:
    """Uncompressed size: as the gzip trailer tells it if the file is small enough for that to be the truth. A remote
    file of which the listing tells nothing is taken for a large one; one that is not there for nothing.
    """
    if isinstance(file, Remote):
        packed = file.name.endswith((".gz", ".zst"))
        return _LARGE if file.size < 0 else file.size * (_PACKED if packed else 1)
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            magic = opened.read(4)
            if not magic.startswith((_GZIP, _ZSTD)):
                return size
            if magic.startswith(_ZSTD) or size > _LARGEST_TOLD:
                return _PACKED * size
            opened.seek(-4, os.SEEK_END)
            return max(int.from_bytes(opened.read(4), "little"), size)
    except OSError:
        return 0


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        told = next((line for line in lines if line.startswith("MemAvailable:")), "")
        return int(told.split()[1]) * 1024
    except (OSError, IndexError):
        return _by_pages()


def _by_pages() -> int | None:
    """Half of all memory, where only that is known."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return None


def _cgroup(version: int) -> tuple[int, int]:
    """(limit, used) bytes of the container; (0, 0) without one."""
    folder = Path("/sys/fs/cgroup") if version == 2 else Path("/sys/fs/cgroup/memory")
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    try:
        limit, used = ((folder / name).read_text(encoding="ascii").strip() for name in names)
        return (int(limit), int(used)) if limit.isdigit() and int(limit) < 2**60 else (0, 0)
    except OSError:
        return 0, 0
