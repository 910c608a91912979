"""Summaries of ranks beside their traces, so that a second look, or one more rank, costs one rank.

`.traceq/<trace file>.summary` in the folder of the traces. An entry holds for one file, as its size, times and number
tell, and for the sources of traceq that wrote it. Whatever is stale, damaged or cannot be written is as if it were not.
TRACEQ_CACHE=0 in the environment switches it off.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from traceq.engines.codec import Damaged, pack, unpack
from traceq.engines.rank_summary import RankSummary
from traceq.engines.source_digest import sources
from traceq.locations import Place
from traceq.runs.layout import replaced

__all__ = ["How", "known", "remember"]

FOLDER = ".traceq"


class How(NamedTuple):
    """How a trace is read: whether any damage refuses it, and cut to which step, if to one."""

    strict: bool
    step: int | None


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    summary: RankSummary


def known(file: Place, names: Sequence[str], how: How) -> RankSummary | None:
    """The summary of a trace if it is there, of these analyses."""
    if (kept := _kept(file, how)) is None:
        return None
    place, key = kept
    try:
        entry = unpack(place.read_bytes(), _Entry)
    except (OSError, Damaged):
        return None
    return entry.summary if entry.key == key and entry.summary.names >= set(names) else None


def remember(file: Place, summary: RankSummary, how: How) -> None:
    """Keep it, where that is possible, with what is known of the trace already."""
    if (kept := _kept(file, how)) is None:
        return
    place, key = kept
    if (before := known(file, (), how)) is not None:
        summary = replace(summary, parts=tuple((dict(before.parts) | dict(summary.parts)).items()))
    with suppress(OSError):
        place.parent.mkdir(exist_ok=True)
        with replaced(place) as part:
            part.write_bytes(pack(_Entry(key, summary)))


def _kept(file: Place, how: How) -> tuple[Path, str] | None:
    """Where the entry of a trace is, and what it must say to hold; None without a cache."""
    if os.environ.get("TRACEQ_CACHE") == "0" or not isinstance(file, Path):
        return None
    try:
        now = file.stat()
    except OSError:
        return None
    key = f"{sources()} {now.st_size} {now.st_mtime_ns} {now.st_ino} {how}"
    step = "" if how.step is None else f".step{how.step}"
    return file.parent / FOLDER / f"{file.name}{step}.summary", key
