"""Ops that a trace lacks, by the numbers of those that it has: it may be a sample, or its events were lost."""

from __future__ import annotations

import numpy as np

from traceq.facts.memo import once_per_trace
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

__all__ = ["missing_ops_share"]

_FEWEST = 100
"""Ops from which the holes between their numbers tell something."""
_MANY_HOLES = 0.2
"""Part of the ops behind a hole from which ops are missing everywhere; whole traces have up to 0.015."""


@once_per_trace
def missing_ops_share(trace: Trace) -> float:
    """Return the part of its ops that a trace lacks, 0 to 1; 0 of one without holes everywhere.

    The profiler numbers ops in order (`External id`). Annotations and ops of other threads take numbers, too: single
    ones, or many at once.
    """
    number = trace.events.external_id[trace.events.rows(Category.CPU_OP, Category.COMPILING)]
    numbers = sorted_unique(number[number > 0])
    if len(numbers) < _FEWEST or (np.diff(numbers) > 2).mean() < _MANY_HOLES:
        return 0.0
    return 1 - len(numbers) / float(numbers[-1] - numbers[0] + 1)
