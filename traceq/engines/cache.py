"""Cache of the summaries of ranks, so that only new or changed ranks are read again.

It is the folder `traceq` in the user's cache folder (XDG_CACHE_HOME), private to the user: one of somebody else, or
that is a link, is not used. An entry is valid for a file of the same path, size, modification time and inode, and for
the sources of traceq that wrote it; that is checked before any of it is decoded. Stale and damaged entries are ignored,
and so are errors when writing. Beyond MOST_BYTES the entries that were not used for longest are removed. TRACEQ_CACHE=0
in the environment disables the cache.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import traceq
from traceq.analysis.registry import plugins_version
from traceq.engines.rank_summary import Damaged, RankSummary, pack, unpack
from traceq.locations import Most, Place, open_binary, read_rest
from traceq.runs.run_folder import atomic_write

MOST_BYTES = Most.CACHE_ENTRY
_SUFFIX = ".summary"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class How(NamedTuple):
    """Options of reading a trace: whether a damaged one is refused, the step to which it is cut, and what never counts.

    `left_out`: names of steps of which another rank has only a part.
    """

    strict: bool
    step: int | None
    left_out: tuple[str, ...] = ()


def cache_folder() -> Path:
    """Return the folder of the cache, whether it exists or not."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given) / "traceq"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "traceq" / "cache"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "traceq"


def cache_entries() -> list[tuple[Path, os.stat_result]]:
    """Return the entries with what the system says of each, those that were not used for longest first."""
    entries = []
    with suppress(OSError), os.scandir(cache_folder()) as files:
        for file in files:
            with suppress(FileNotFoundError):  # another process has removed or replaced it
                if file.name.endswith(_SUFFIX) and file.is_file(follow_symlinks=False):
                    entries.append((Path(file.path), file.stat(follow_symlinks=False)))
    return sorted(entries, key=lambda entry: entry[1].st_mtime_ns)


def clear_cache() -> int:
    """Remove all entries, and return how many there were."""
    entries = cache_entries()
    for path, _ in entries:
        path.unlink(missing_ok=True)
    return len(entries)


def load_summary(file: Place, names: Sequence[str], how: How) -> RankSummary | None:
    """Return the cached summary of a trace; None unless it has these analyses."""
    if (entry := _entry_of(file, how)) is None or not _is_private(entry.path.parent):
        return None
    try:
        with open_binary(entry.path) as stream:
            if entry.path.is_symlink() or stream.read(len(entry.key)) != entry.key:
                return None
            summary = unpack(read_rest(entry.path, stream, Most.CACHE_ENTRY), RankSummary)
        os.utime(entry.path)
    except (OSError, Damaged):
        return None
    return summary if summary.names >= set(names) else None


def cache_key(file: Place, how: How) -> bytes:
    """Return what the cache knows a trace by, as it is now; empty without a cache."""
    entry = _entry_of(file, how)
    return entry.key if entry else b""


def store_summary(file: Place, summary: RankSummary, how: How, key: bytes = b"") -> None:
    """Write a summary to the cache, if possible, merged with the parts that are cached already.

    `key` is that of the trace before it was read: of one that has changed since, as one that is still being written,
    nothing is stored.
    """
    if (entry := _entry_of(file, how)) is None or (key and key != entry.key):
        return
    if (before := load_summary(file, (), how)) is not None:
        summary = replace(summary, parts=tuple((dict(before.parts) | dict(summary.parts)).items()))
    with suppress(OSError):
        entry.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not entry.path.parent.is_symlink():
            entry.path.parent.chmod(0o700)
        if not _is_private(entry.path.parent):
            return
        if entry.path.is_symlink():
            entry.path.unlink()
        with atomic_write(entry.path) as part:
            part.write_bytes(entry.key + pack(summary))
        _remove_oldest(entry.path.stat().st_size)


def _is_private(folder: Path) -> bool:
    """Return whether a folder is the user's own, no link, and closed to others."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        return False
    return sys.platform == "win32" or (status.st_uid == os.geteuid() and not status.st_mode & _OTHERS)


_written_bytes = [MOST_BYTES]
"""Bytes written since the size of the cache was last looked at; a process looks at its first entry."""


def _remove_oldest(size_bytes: int) -> None:
    """Keep the cache below its bound, give or take a sixteenth of it."""
    _written_bytes[0] += size_bytes
    if _written_bytes[0] < MOST_BYTES // 16:
        return
    _written_bytes[0] = 0
    entries = cache_entries()
    excess = sum(status.st_size for _, status in entries) - MOST_BYTES
    for path, status in entries:
        if excess <= 0:
            return
        path.unlink(missing_ok=True)
        excess -= status.st_size


class _Entry(NamedTuple):
    """Where a summary is stored, and the bytes with which a valid one begins."""

    path: Path
    key: bytes


def _entry_of(file: Place, how: How) -> _Entry | None:
    """Return the entry of a trace; None without a cache."""
    if os.environ.get("TRACEQ_CACHE") == "0" or not isinstance(file, Path):
        return None
    try:
        now, place = file.stat(), str(file.resolve())
    except OSError:
        return None
    from hashlib import sha256  # OpenSSL takes 2 ms to load, which no single file needs

    name = sha256(f"{place}\0{how.step} {how.left_out}".encode(errors="surrogateescape")).hexdigest()[:32]
    facts = f"{place}\0{sources()} {plugins_version()} {now.st_size} {now.st_mtime_ns} {now.st_ino} {how}"
    return _Entry(cache_folder() / f"{name}{_SUFFIX}", sha256(facts.encode(errors="surrogateescape")).digest())


@cache
def sources() -> str:
    """Return the version with a digest of the sources: `1.0.0 (5d9e6be41c2a)`."""
    from hashlib import sha256  # OpenSSL takes 2 ms to load

    digest, root = sha256(), Path(traceq.__file__).parent
    for file in sorted(root.rglob("*.py")):
        digest.update(file.read_bytes())
    return f"{traceq.__version__} ({digest.hexdigest()[:12]})"
