"""How often each op runs in a step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import steps
from traceq.intervals import span_index
from traceq.model import Category, Trace

__all__ = ["op_calls_per_step"]


@once_per_trace
def op_calls_per_step(trace: Trace) -> Mapping[str, float]:
    """Return the calls of each op in a mean counted step, by name; those that begin in it, on any thread."""
    events, counted = trace.events, steps(trace).host[steps(trace).counted]
    rows = events.rows(Category.CPU_OP)
    num = np.bincount(events.name[rows[span_index(counted, events.ts[rows]) >= 0]])
    return {events.strings[name]: int(num[name]) / len(counted) for name in np.flatnonzero(num).tolist()}
