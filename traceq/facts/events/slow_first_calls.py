"""First calls of ops that take far longer than later ones: they choose algorithms, compile, or fill caches, once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.memo import once_per_trace
from traceq.grouping import group
from traceq.model import Category, Trace

__all__ = ["slow_first_calls"]

_LEAST_NS, _LEAST_MULTIPLE, _FEWEST = 1_000_000, 10, 4
"""A first call that is noted takes so long, and so many times the median of at least so many later calls."""


@once_per_trace
def slow_first_calls(trace: Trace) -> NDArray[np.int64]:
    """Return int64[F]: the rows of the first calls of ops that take 1 ms, and ten times the median of later calls."""
    events = trace.events
    rows = events.rows(Category.CPU_OP)
    is_long = np.zeros(len(events.strings) + 1, np.bool_)
    is_long[events.name[rows[events.dur[rows] >= _LEAST_NS]]] = True
    rows = rows[is_long[events.name[rows]]]
    rows = rows[np.argsort(events.ts[rows], kind="stable")]
    groups = group([events.name[rows]])
    first = groups.first
    by_length = np.lexsort([events.dur[rows], groups.group_ids])
    num = np.array(groups.count(), np.int64)
    middle = np.cumsum(num) - num + np.maximum(num - 2, 0) // 2  # of later calls, if the first is the longest
    median = events.dur[rows[by_length[middle]]]
    took = events.dur[rows[first]]
    is_slow = (num > _FEWEST) & (took >= _LEAST_NS) & (took >= _LEAST_MULTIPLE * median)
    return np.sort(rows[first[is_slow]])
