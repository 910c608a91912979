"""Forward op of each backward op, by autograd's sequence numbers, and ops that backward nodes recompute."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.nesting import Nest, host_ops, tracks
from traceq.facts.memo import once_per_trace
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

RECOMPUTED = " (recomputed)"
"""Behind the name of such an op."""


@once_per_trace
def is_backward(trace: Trace) -> NDArray[np.bool_]:
    """Return which rows of Events are ops of a backward pass by their own arguments: bool[N]."""
    events = trace.events
    is_op = events.category == Category.CPU_OP
    return np.asarray(is_op & (events.forward_thread > 0) & (events.sequence >= 0))


@once_per_trace
def forward_op(trace: Trace) -> NDArray[np.int32]:
    """Return the row of the forward op of each backward op: int32[N], -1 for other rows and if the trace has none.

    Of several forward ops with one number the last is the right one: an op shows the number that the next autograd node
    will get, and the innermost op creates the node.
    """
    events = trace.events
    forward_row = np.full(len(events), -1, np.int32)
    backward = np.flatnonzero(is_backward(trace))
    ops = events.rows(Category.CPU_OP)
    forward = ops[(events.sequence[ops] >= 0) & (events.forward_thread[ops] <= 0)]
    if len(forward) == 0 or len(backward) == 0:
        return forward_row
    for thread in sorted_unique(events.forward_thread[backward]).tolist():
        of_thread = backward[events.forward_thread[backward] == thread]
        on_track = _on_best_track(trace, forward, of_thread)
        if len(on_track):  # none if all of its forward ops ran before the window
            forward_row[of_thread] = _last_with_number(trace, on_track, of_thread)
    return forward_row


def forward_op_at(trace: Trace, track: NDArray[np.int64], instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of the forward op of the backward op at each instant of a thread: int64[K], -1 without one."""
    forward = np.full(len(instants), -1)
    for ops, which in host_ops(trace).on(track):
        index = ops.first_enclosing(ops.innermost_at(instants[which]), is_backward(trace)[ops.rows])
        forward[which] = np.where(index >= 0, forward_op(trace)[ops.rows[index]], -1)
    return forward


def _on_best_track(trace: Trace, forward: NDArray[np.int64], backward: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the forward ops of the track that shares most numbers with `backward`.

    `Fwd thread id` cannot select the track: it counts threads by a numbering that no other field uses.
    """
    track, number = tracks(trace)[forward], trace.events.sequence
    shared = np.isin(number[forward], number[backward])
    candidates, votes = np.unique(track[shared], return_counts=True)
    return forward[track == candidates[np.argmax(votes)]] if len(candidates) else forward[:0]


def _last_with_number(trace: Trace, forward: NDArray[np.int64], backward: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the latest op of `forward` with the number of each op of `backward`, -1 if there is none."""
    events = trace.events
    forward = forward[np.lexsort((forward, events.ts[forward], events.sequence[forward]))]
    numbers = events.sequence[forward]
    index = np.searchsorted(numbers, events.sequence[backward], "right") - 1
    exists = (index >= 0) & (numbers[index] == events.sequence[backward])
    return np.where(exists, forward[index], -1)


@once_per_trace
def recomputed_ops(trace: Trace) -> NDArray[np.bool_]:
    """Return which rows of Events are ops that a backward node recomputes, not those inside these: bool[N].

    Autograd numbers them as it does in forward, but not the op of the node itself, which comes last. Of a backward pass
    that is differentiated again (`create_graph`) it numbers all. A checkpoint without reentry is recomputed by the
    first node that needs one of its tensors, which has nothing else to do with these ops.
    """
    is_recomputed = np.zeros(len(trace.events), np.bool_)
    for ops in host_ops(trace).values():
        is_recomputed[ops.rows[_recomputed(trace, ops)]] = True
    return is_recomputed


def outermost_ops(trace: Trace, ops: Nest) -> NDArray[np.int64]:
    """Return the index of the outermost op around each op of a thread: int64[M]; of a recomputed one that itself."""
    return ops.outermost(recomputed_ops(trace)[ops.rows])


def is_recomputed_at(trace: Trace, track: NDArray[np.int64], instants: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether a thread is in an op that a backward node recomputes, at each instant: bool[K]."""
    is_recomputed = np.zeros(len(instants), np.bool_)
    for ops, which in host_ops(trace).on(track):
        op = ops.innermost_at(instants[which])
        around = ops.rows[outermost_ops(trace, ops)[op]]
        is_recomputed[which] = (op >= 0) & recomputed_ops(trace)[around]
    return is_recomputed


def _recomputed(trace: Trace, ops: Nest) -> NDArray[np.int64]:
    """Return the indices of the ops of a thread that are recomputed."""
    is_node = is_backward(trace)[ops.rows]
    inner = np.flatnonzero((ops.parent >= 0) & ~is_node)
    inner = inner[is_node[ops.parent[inner]]]
    is_numbered = trace.events.sequence[ops.rows[inner]] >= 0
    ends_numbered = np.zeros(len(ops.rows), np.bool_)
    ends_numbered[ops.parent[inner]] = is_numbered  # the last one of each node decides
    return inner[is_numbered & ~ends_numbered[ops.parent[inner]]]
