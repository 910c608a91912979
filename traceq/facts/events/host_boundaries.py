"""Times at which the host changes state: between two of them every thread stays in the same op and Python frame."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.memo import once_per_trace
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace


@once_per_trace
def host_boundaries(trace: Trace) -> NDArray[np.int64]:
    """Return the starts and ends of all ops, annotations and Python frames: int64[K] ns, ascending."""
    events = trace.events
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION, Category.PYTHON)
    start = events.ts[rows]
    return sorted_unique(start, start + events.dur[rows])
