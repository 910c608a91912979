"""Which row of gloo carried out which `c10d` op.

The ops are the truth: gloo's rows call a reduce-scatter all_reduce, and its threads begin what they took from one queue
in an order that can differ by a hair from that of issue.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import matching
from traceq.model import Category, Trace

__all__ = ["gloo_pairs"]

_DISPATCHED = re.compile(r"^c10d::(?!.*(wait|barrier|send|recv))")
_MOST_UNFINISHED = 8


def gloo_pairs(trace: Trace, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """(rows of the `c10d` ops by time, the index into gloo's `rows`, by start, that carried each out, -1 without one).

    None where they are no pairs. A window that opens between an op and its row holds the row alone, one that closes
    there the op alone.
    """
    events = trace.events
    host = events.rows(Category.CPU_OP, Category.ANNOTATION)
    ops = host[matching(events, host, _DISPATCHED)]
    ops = ops[np.argsort(events.ts[ops], kind="stable")]
    if len(ops) == 0:
        return None
    began = events.ts[rows]
    alone = int(np.searchsorted(began, events.ts[ops[0]], "left"))
    num = len(rows) - alone
    if not 0 <= len(ops) - num <= _MOST_UNFINISHED or (began[alone:] < events.ts[ops[:num]]).any():
        return None
    ran = np.full(len(ops), -1)
    ran[:num] = np.arange(alone, len(rows))
    swapped = _swapped(_elements(trace, ops[:num]), _elements(trace, rows[alone:]))
    ran[swapped], ran[swapped + 1] = ran[swapped + 1], ran[swapped].copy()
    return ops, ran


def _swapped(issued: NDArray[np.int64], began: NDArray[np.int64]) -> NDArray[np.intp]:
    """Where two neighbours began in the other order: each has the elements of the other, and not its own."""
    crosses = (issued[:-1] == began[1:]) & (issued[1:] == began[:-1]) & (issued[:-1] != began[:-1])
    return np.flatnonzero(crosses & ~np.r_[False, crosses[:-1]][: len(crosses)])


def _elements(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Elements that each row tells of, -1 without."""
    messages = trace.events.messages
    if len(messages.row) == 0:
        return np.full(len(rows), -1)
    at = np.minimum(np.searchsorted(messages.row, rows), len(messages.row) - 1)
    return np.where(messages.row[at] == rows, messages.elements_in[at], -1)
