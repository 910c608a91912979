"""Self time of the ops inside each outermost host op, so that time counts once and not for every enclosing op."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.compare.cost_centers import Actors
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.events.recomputed_ops import outermost_ops
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import Spans, measure_within, spans
from traceq.model import Trace

__all__ = ["OpSelfTime", "op_self_times"]


@frozen
class OpSelfTime:
    """Self time `ns` of the ops of one name."""

    name: str
    ns: int


def op_self_times(
    trace: Trace, all_actors: Actors, parts: Spans, actor: NDArray[np.int64], account: NDArray[np.int64]
) -> dict[int, tuple[OpSelfTime, ...]]:
    """Return the time of each account by innermost op, as far as ops enclose each other.

    `actor` int64[M] is the actor of each of the M parts; `account` int64[A] the account of each actor, -1 for none.
    """
    op_track = tracks(trace)[all_actors.op_rows]
    is_op = (actor >= all_actors.first_op) & (actor < all_actors.first_call)
    times: dict[int, list[OpSelfTime]] = {}
    for track, ops in host_ops(trace).items():
        selected = np.flatnonzero(is_op)[op_track[actor[is_op] - all_actors.first_op] == track]
        charged = spans(parts[selected, 0], parts[selected, 1])
        self_ns = measure_within(charged, ops.start, ops.end)
        inner = np.flatnonzero(ops.parent >= 0)
        np.subtract.at(self_ns, ops.parent[inner], self_ns[inner])
        top = np.searchsorted(all_actors.op_rows, ops.rows[outermost_ops(trace, ops)])
        op_account = account[all_actors.first_op + top]
        sums = group([op_account, trace.events.name[ops.rows]])
        for (number, name), ns in zip(sums.keys.tolist(), sums.sum(self_ns), strict=True):
            if number >= 0 and ns:
                times.setdefault(number, []).append(OpSelfTime(trace.events.strings[name], ns))
    return {number: tuple(of_account) for number, of_account in times.items()}
