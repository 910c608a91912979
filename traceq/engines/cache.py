"""Cache of the summaries of ranks beside their traces, so that only new or changed ranks are read again.

Files are `.traceq/<trace file>.summary` in the folder of the traces. An entry is valid for a file of the same size,
modification time and inode, and for the sources of traceq that wrote it. Stale and damaged entries are ignored, and so
are errors when writing. TRACEQ_CACHE=0 in the environment disables the cache.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from traceq.analysis.registry import plugins_version
from traceq.engines.rank_summary import RankSummary
from traceq.engines.serialization import Damaged, pack, unpack
from traceq.engines.source_digest import sources
from traceq.locations import Place
from traceq.runs.run_folder import atomic_write

__all__ = ["How", "load_summary", "store_summary"]

FOLDER = ".traceq"


class How(NamedTuple):
    """Options of reading a trace: whether a damaged one is refused, and the step to which it is cut, if any."""

    strict: bool
    step: int | None


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    summary: RankSummary


def load_summary(file: Place, names: Sequence[str], how: How) -> RankSummary | None:
    """Return the cached summary of a trace; None unless it has these analyses."""
    if (cached := _entry_of(file, how)) is None:
        return None
    place, key = cached
    try:
        entry = unpack(place.read_bytes(), _Entry)
    except (OSError, Damaged):
        return None
    return entry.summary if entry.key == key and entry.summary.names >= set(names) else None


def store_summary(file: Place, summary: RankSummary, how: How) -> None:
    """Write a summary to the cache, if possible, merged with the parts that are cached already."""
    if (cached := _entry_of(file, how)) is None:
        return
    place, key = cached
    if (before := load_summary(file, (), how)) is not None:
        summary = replace(summary, parts=tuple((dict(before.parts) | dict(summary.parts)).items()))
    with suppress(OSError):
        place.parent.mkdir(exist_ok=True)
        with atomic_write(place) as part:
            part.write_bytes(pack(_Entry(key, summary)))


def _entry_of(file: Place, how: How) -> tuple[Path, str] | None:
    """Return (path of a trace's entry, key that makes it valid); None without a cache."""
    if os.environ.get("TRACEQ_CACHE") == "0" or not isinstance(file, Path):
        return None
    try:
        now = file.stat()
    except OSError:
        return None
    key = f"{sources()} {plugins_version()} {now.st_size} {now.st_mtime_ns} {now.st_ino} {how}"
    step = "" if how.step is None else f".step{how.step}"
    return file.parent / FOLDER / f"{file.name}{step}.summary", key
