"""Pairs of `c10d` ops and the gloo rows that executed them.

The ops are right: gloo's rows name a reduce-scatter all_reduce, and its threads start the work of one queue in an order
that can differ slightly from the order of issue.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import matching
from traceq.model import Category, Trace

_DISPATCHED = re.compile(r"^c10d::(?!.*(wait|barrier|send|recv))")
_MOST_UNFINISHED = 8


def gloo_pairs(trace: Trace, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return (rows of the `c10d` ops by time, index into gloo's `rows`, by start, that executed each, -1 without one).

    None where ops and rows do not pair up. A window that opens between an op and its row contains only the row, one
    that closes there only the op.
    """
    events = trace.events
    host = events.rows(Category.CPU_OP, Category.ANNOTATION)
    ops = host[matching(events, host, _DISPATCHED)]
    ops = ops[np.argsort(events.ts[ops], kind="stable")]
    if len(ops) == 0:
        return None
    row_start = events.ts[rows]
    num_without_op = int(np.searchsorted(row_start, events.ts[ops[0]], "left"))
    num_pairs = len(rows) - num_without_op
    if (
        not 0 <= len(ops) - num_pairs <= _MOST_UNFINISHED
        or (row_start[num_without_op:] < events.ts[ops[:num_pairs]]).any()
    ):
        return None
    ran = np.full(len(ops), -1)
    ran[:num_pairs] = np.arange(num_without_op, len(rows))
    swapped = _swapped(_elements(trace, ops[:num_pairs]), _elements(trace, rows[num_without_op:]))
    ran[swapped], ran[swapped + 1] = ran[swapped + 1], ran[swapped].copy()
    return ops, ran


def _swapped(issued: NDArray[np.int64], began: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the indices where two neighbours started in the other order: each has the elements of the other."""
    crosses = (issued[:-1] == began[1:]) & (issued[1:] == began[:-1]) & (issued[:-1] != began[:-1])
    return np.flatnonzero(crosses & ~np.r_[False, crosses[:-1]][: len(crosses)])


def _elements(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the input elements of each row, -1 without them."""
    messages = trace.events.messages
    if len(messages.row) == 0:
        return np.full(len(rows), -1)
    index = np.minimum(np.searchsorted(messages.row, rows), len(messages.row) - 1)
    return np.where(messages.row[index] == rows, messages.elements_in[index], -1)
