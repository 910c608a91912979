"""Sessions of the profiler that one trace joins, by the numbers of its steps."""

from __future__ import annotations

import re

import numpy as np

from traceq.facts.events.name_patterns import matching
from traceq.facts.memo import once_per_trace
from traceq.intervals import Spans
from traceq.model import Category, Trace

PROFILER_STEP = re.compile(r"^ProfilerStep#(\d{1,18})$")


@once_per_trace
def session_gaps(trace: Trace) -> Spans:
    """Return the time between the last step of a profiler session and the first of the next: int64[G, 2] ns.

    A recording of traceq joins several windows of an arm in one trace, and numbers their steps such that some are left
    out between two windows. In another trace, numbers that are missing are marks that were lost: no less a gap.
    """
    events = trace.events
    rows = events.rows(Category.ANNOTATION, Category.CPU_OP)
    rows = rows[matching(events, rows, PROFILER_STEP)]
    rows = rows[np.lexsort((events.end[rows], events.ts[rows]))]
    number = np.array([int(events.text(row).partition("#")[2]) for row in rows.tolist()], np.int64)
    first = np.flatnonzero(np.diff(number) > 1) + 1
    return np.column_stack([np.maximum.accumulate(events.end[rows])[first - 1], events.ts[rows[first]]])
