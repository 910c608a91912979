"""Traceback of a job's exception without the frames of the recorder's hooks."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

__all__ = ["without_own_frames"]

_PACKAGE = f"{Path(__file__).parents[2]}/"


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return the same traceback without frames of traceq; with all of them if there are no others."""
    entries: list[TracebackType] = []
    entry = traceback
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            entries.append(entry)
        entry = entry.tb_next
    kept: TracebackType | None = None
    for entry in reversed(entries):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept or traceback
