"""How often each op runs in a step, and how often in forward passes alone."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import op_nests
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import steps
from traceq.intervals import span_index
from traceq.model import Category, Trace

_NODE = re.compile(r"^autograd::engine::|Backward\d*$")


@once_per_trace
def op_calls_per_step(trace: Trace) -> Mapping[str, float]:
    """Return the calls of each op in a mean counted step, by name; those that begin in it, on any thread."""
    return _calls_per_step(trace, trace.events.rows(Category.CPU_OP))


@once_per_trace
def forward_calls_per_step(trace: Trace) -> Mapping[str, float]:
    """Return the calls of each op that no node of autograd encloses, likewise.

    Second derivatives, and what checkpoints recompute, run ops of a forward pass in such nodes.
    """
    outside = [
        ops.rows[ops.first_enclosing(np.arange(len(ops.rows)), matching(trace.events, ops.rows, _NODE)) < 0]
        for ops in op_nests(trace).whole
    ]
    return _calls_per_step(trace, np.concatenate(outside) if outside else np.empty(0, np.int64))


def _calls_per_step(trace: Trace, rows: NDArray[np.int64]) -> Mapping[str, float]:
    events, counted = trace.events, steps(trace).host[steps(trace).counted]
    num = np.bincount(events.name[rows[span_index(counted, events.ts[rows]) >= 0]])
    return {events.strings[name]: int(num[name]) / len(counted) for name in np.flatnonzero(num).tolist()}
