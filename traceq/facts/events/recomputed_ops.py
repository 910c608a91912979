"""Ops of a forward pass that run again inside a node of the backward pass: activation checkpointing.

A checkpoint without reentry is recomputed by the first node that needs one of its tensors, which has nothing else to do
with these ops.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.forward_ops import is_backward
from traceq.facts.events.nesting import Nest, op_nests
from traceq.facts.memo import once_per_trace
from traceq.model import Trace

__all__ = ["RECOMPUTED", "is_recomputed_at", "outermost_ops", "recomputed_ops"]

RECOMPUTED = " (recomputed)"
"""Behind the name of such an op."""


@once_per_trace
def recomputed_ops(trace: Trace) -> NDArray[np.bool_]:
    """Return which rows of Events are ops that a backward node recomputes, not those inside these: bool[N].

    Autograd numbers them as it does in forward, but not the op of the node itself, which comes last. Of a backward pass
    that is differentiated again (`create_graph`) it numbers all.
    """
    is_recomputed = np.zeros(len(trace.events), np.bool_)
    for ops in op_nests(trace).whole:
        is_recomputed[ops.rows[_recomputed(trace, ops)]] = True
    return is_recomputed


def outermost_ops(trace: Trace, ops: Nest) -> NDArray[np.int64]:
    """Return the index of the outermost op around each op of a thread: int64[M]; of a recomputed one that itself."""
    return ops.outermost(recomputed_ops(trace)[ops.rows])


def is_recomputed_at(trace: Trace, track: NDArray[np.int64], instants: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether a thread is in an op that a backward node recomputes, at each instant: bool[K]."""
    is_recomputed = np.zeros(len(instants), np.bool_)
    for part in op_nests(trace).on(track):
        op = part.innermost_at(instants[part.which])
        around = part.nest.rows[outermost_ops(trace, part.nest)[op]]
        is_recomputed[part.which] = (op >= 0) & recomputed_ops(trace)[around]
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
