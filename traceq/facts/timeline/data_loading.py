"""Time in which the main thread fetches the next batch from the data loader."""

from __future__ import annotations

import re

from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import main_track
from traceq.intervals import Spans, measure, spans
from traceq.model import Category, Trace

__all__ = ["DATALOAD_WAIT", "LOADER", "LOADER_CREATION", "LOADING", "loader_waits", "makes_own_batches", "own_batches"]

DATALOAD_WAIT = "dataload_wait"
"""Phase in which a recorded loop fetches its next batch."""

LOADING = ("dataload", DATALOAD_WAIT)
"""Phases in which the next batch is fetched: of torch's ranges around that, and of a recorded loop."""

LOADER = r"enumerate\(DataLoader\)"
"""Start of torch's name for the ranges in which a loop fetches its next batch; the iterator's class follows."""

LOADER_CREATION = re.compile(r"(^|/)torch/utils/data/dataloader\.py\(\d+\): _get_iterator$")
"""Frame of Python in which a loop creates the iterator of its loader, which starts the workers."""

_LOADER_START = re.compile(f"^{LOADER}")


_WITHOUT_WORKERS = re.compile(rf"^{LOADER}#_SingleProcess")


@once_per_trace
def loader_waits(trace: Trace) -> Spans:
    """Return the time in which the main thread waits for the data loader, or makes the batches itself."""
    return _ranges(trace, _LOADER_START)


@once_per_trace
def own_batches(trace: Trace) -> Spans:
    """Return the part of `loader_waits` in which the main thread makes the batches itself, without workers."""
    return _ranges(trace, _WITHOUT_WORKERS)


def makes_own_batches(trace: Trace) -> bool:
    """Return whether most of `loader_waits` is such a part: with `num_workers=0` there is nobody to wait for."""
    return 2 * measure(own_batches(trace)) > measure(loader_waits(trace))


def _ranges(trace: Trace, name: re.Pattern[str]) -> Spans:
    events = trace.events
    rows = events.rows(Category.ANNOTATION, Category.CPU_OP)
    rows = rows[matching(events, rows, name)]
    rows = rows[tracks(trace)[rows] == main_track(trace)]
    return spans(events.ts[rows], events.end[rows])
