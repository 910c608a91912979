"""Barriers that a thread of the host runs, as gloo's: they move no data, and are in no table of collectives."""

from __future__ import annotations

import re

from traceq.facts.events.name_patterns import matching
from traceq.facts.memo import once_per_trace
from traceq.intervals import Spans, spans
from traceq.model import Category, Trace

__all__ = ["barriers"]

_BARRIER = re.compile(r"^gloo:(monitored_)?barrier")


@once_per_trace
def barriers(trace: Trace) -> Spans:
    """Return when a thread is in a barrier."""
    events = trace.events
    rows = events.rows(Category.ANNOTATION, Category.CPU_OP)
    rows = rows[matching(events, rows, _BARRIER)]
    return spans(events.ts[rows], events.end[rows])
