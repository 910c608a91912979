"""Forward op of each backward op: autograd numbers what it will differentiate, and the numbers stand on both ops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

__all__ = ["forward_op", "is_backward"]


@once_per_trace
def is_backward(trace: Trace) -> NDArray[np.bool_]:
    """bool[N]: rows of Events that are ops of a backward pass, by their own arguments."""
    events = trace.events
    told: NDArray[np.bool_] = (
        (events.category == Category.CPU_OP) & (events.forward_thread > 0) & (events.sequence >= 0)
    )
    return told


@once_per_trace
def forward_op(trace: Trace) -> NDArray[np.int64]:
    """int64[N]: row of the forward op of each backward op, -1 for all others and where the trace has none.

    Of several forward ops of one number the last is meant: an op shows the number that the next node will get, and the
    innermost op makes the node.
    """
    events = trace.events
    found = np.full(len(events), -1)
    backward = np.flatnonzero(is_backward(trace))
    ops = events.rows(Category.CPU_OP)
    forward = ops[(events.sequence[ops] >= 0) & (events.forward_thread[ops] <= 0)]
    if len(forward) == 0 or len(backward) == 0:
        return found
    for thread in sorted_unique(events.forward_thread[backward]).tolist():
        mine = backward[events.forward_thread[backward] == thread]
        found[mine] = _last_of_number(trace, _of_its_thread(trace, forward, mine), mine)
    return found


def _of_its_thread(trace: Trace, forward: NDArray[np.int64], backward: NDArray[np.int64]) -> NDArray[np.int64]:
    """Forward ops of the track that has most of the numbers: `Fwd thread id` counts threads in a way of its own."""
    track, number = tracks(trace)[forward], trace.events.sequence
    shared = np.isin(number[forward], number[backward])
    candidates, votes = np.unique(track[shared], return_counts=True)
    return forward[track == candidates[np.argmax(votes)]] if len(candidates) else forward[:0]


def _last_of_number(trace: Trace, forward: NDArray[np.int64], backward: NDArray[np.int64]) -> NDArray[np.int64]:
    """The latest op of `forward` with the number of each op of `backward`, -1 where none has it."""
    events = trace.events
    forward = forward[np.lexsort((forward, events.ts[forward], events.sequence[forward]))]
    numbers = events.sequence[forward]
    at = np.searchsorted(numbers, events.sequence[backward], "right") - 1
    has = (at >= 0) & (numbers[at] == events.sequence[backward])
    return np.where(has, forward[at], -1)
