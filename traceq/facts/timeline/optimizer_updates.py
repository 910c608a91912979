"""Updates within `Optimizer.step#*` ranges: without the forward and backward pass that a closure runs first."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import matching
from traceq.facts.memo import once_per_trace
from traceq.model import Category, Trace

OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#(?P<name>.*?)(\.step)?$")
_AUTOGRAD = re.compile(r"^autograd::engine")


def optimizer_steps(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of Events of the ranges of optimizers' steps: int64[N]."""
    rows = trace.events.rows(Category.ANNOTATION, Category.CPU_OP)
    return rows[matching(trace.events, rows, OPTIMIZER_STEP)]


def update_starts(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[N] ns: when the update begins in each range of an optimizer's step.

    A trainer may pass forward and backward as a closure (Lightning does); then it is the end of the last backward op
    that begins inside the range, on any thread.
    """
    start, end = trace.events.ts[rows], trace.events.end[rows]
    began, latest_end = _backward_ops(trace)
    last = np.searchsorted(began, end) - 1
    has_backward = (last >= 0) & (last >= np.searchsorted(began, start))
    return np.where(has_backward, np.minimum(latest_end[last] if len(began) else start, end), start)


@once_per_trace
def _backward_ops(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (starts of the autograd engine's ops, ascending; the latest end up to each), ns."""
    rows = trace.events.rows(Category.ANNOTATION, Category.CPU_OP)
    rows = rows[matching(trace.events, rows, _AUTOGRAD)]
    rows = rows[np.argsort(trace.events.ts[rows], kind="stable")]
    return trace.events.ts[rows], np.maximum.accumulate(trace.events.end[rows])
