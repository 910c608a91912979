"""Free memory, and the memory that reading a rank takes."""

from __future__ import annotations

import os
from pathlib import Path

from traceq.cores import memory_of_container
from traceq.kineto.decompression import is_gzip, is_zstd
from traceq.locations import Place, Remote, open_binary

__all__ = ["free_bytes", "needed_bytes", "plain_bytes"]

_PER_BYTE, _BARE = 1.5, 100_000_000
"""Bytes that a worker takes per byte of an uncompressed trace, and without a trace: 1.5 times the maximum measured on
traces of 30 to 110 MB."""
_PACKED = 12
"""Assumed compression ratio of a trace where the archive does not give the uncompressed size."""
_UNKNOWN = 4_000_000_000
_LARGE = 500_000_000
_TRAILER_LIMIT = 2**28


def free_bytes() -> int:
    """Return the bytes of memory that can be used without swapping, within a container's limits; 4 GB if unknown."""
    limit, used = memory_of_container()
    limits = [_meminfo(), limit - used if limit else None]
    return max(min((free for free in limits if free is not None), default=_UNKNOWN), 0)


def needed_bytes(file: Place) -> int:
    """Return the maximum memory in bytes of a process that reads a trace, by the size of the file."""
    return int(_PER_BYTE * plain_bytes(file)) + _BARE


def plain_bytes(file: Place) -> int:
    """Return the uncompressed size of a trace in bytes, 0 for a missing file.

    It is exact for plain files and for gzip files that are small enough for the 32-bit size in their trailer, else an
    estimate; remote files of unknown size count as large ones.
    """
    if isinstance(file, Remote):
        packed = file.name.endswith((".gz", ".zst"))
        return _LARGE if file.size < 0 else file.size * (_PACKED if packed else 1)
    try:
        size = file.stat().st_size
        with open_binary(file) as stream:
            magic = stream.read(4)
            if not is_gzip(magic) and not is_zstd(magic):
                return size
            if is_zstd(magic) or size > _TRAILER_LIMIT:
                return _PACKED * size
            stream.seek(-4, os.SEEK_END)
            return max(int.from_bytes(stream.read(4), "little"), size)
    except OSError:
        return 0


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next((line for line in lines if line.startswith("MemAvailable:")), "")
        return int(available.split()[1]) * 1024
    except (OSError, IndexError):
        return _by_pages()


def _by_pages() -> int | None:
    """Return half of the machine's memory, where the free part is unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return None
