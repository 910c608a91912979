"""Which op inside an outermost one the host was really in: time of its own, counted once and not for every ancestor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.compare.cost_centers import Actors
from traceq.facts.events.nesting import host_ops, tracks
from traceq.grouping import group
from traceq.intervals import Spans, measure_within, spans
from traceq.model import Trace

__all__ = ["OwnTime", "own_times"]


@dataclass(frozen=True, slots=True)
class OwnTime:
    """`ns` that the host was in an op of that name, and in no op inside it."""

    name: str
    ns: int


def own_times(
    trace: Trace, all_actors: Actors, parts: Spans, actor: NDArray[np.int64], account: NDArray[np.int64]
) -> dict[int, tuple[OwnTime, ...]]:
    """By account: its time by the innermost op, as far as ops enclose each other. `actor` int64[M] has each of the M
    parts; `account` int64[A] is that of each actor, -1 for none.
    """
    of_track = tracks(trace)[all_actors.op_rows]
    is_op = (actor >= all_actors.first_op) & (actor < all_actors.first_call)
    found: dict[int, list[OwnTime]] = {}
    for number, ops in host_ops(trace).items():
        mine = np.flatnonzero(is_op)[of_track[actor[is_op] - all_actors.first_op] == number]
        charged = spans(parts[mine, 0], parts[mine, 1])
        own = measure_within(charged, ops.start, ops.end)
        inner = np.flatnonzero(ops.parent >= 0)
        np.subtract.at(own, ops.parent[inner], own[inner])
        top = np.searchsorted(all_actors.op_rows, ops.rows[ops.top()])
        of_op = account[all_actors.first_op + top]
        sums = group([of_op, trace.events.name[ops.rows]])
        for (which, name), ns in zip(sums.keys.tolist(), sums.sum(own), strict=True):
            if which >= 0 and ns:
                found.setdefault(which, []).append(OwnTime(trace.events.strings[name], ns))
    return {which: tuple(times) for which, times in found.items()}
