"""When the main thread waits for the data loader."""

from __future__ import annotations

import re

from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import main_track
from traceq.intervals import Spans, spans
from traceq.model import Category, Trace

__all__ = ["LOADER", "loading"]

LOADER = r"enumerate\(DataLoader\)"
"""How torch names the ranges in which a loop asks for its next batch; the rest of the name is the iterator's class."""

_LOADS = re.compile(f"^{LOADER}")


@once_per_trace
def loading(trace: Trace) -> Spans:
    """Instants at which the main thread waits for the data loader."""
    events = trace.events
    rows = events.rows(Category.ANNOTATION, Category.CPU_OP)
    rows = rows[matching(events, rows, _LOADS)]
    rows = rows[tracks(trace)[rows] == main_track(trace)]
    return spans(events.ts[rows], events.end[rows])
