"""First calls of ops that take far longer than later ones: they choose algorithms, compile, or fill caches, once.

TorchScript compiles in the second or third call of a function, for the shapes that it saw, and no row tells so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.memo import once_per_trace
from traceq.grouping import group
from traceq.model import Category, Trace

__all__ = ["slow_first_calls"]

_LEAST_NS, _FEWEST = 1_000_000, 4
"""A first call that is noted takes so long, and several times the median of at least so many later calls."""
_LEAST_MULTIPLES = 10, 100, 100
"""How many times, of the first, the second and the third call."""


@once_per_trace
def slow_first_calls(trace: Trace) -> NDArray[np.int64]:
    """Return int64[F]: the rows of calls of 1 ms or more that are slow once, ascending.

    The first call of an op, if it takes ten times the median of later calls, the second and the third, if a hundred
    times.
    """
    events = trace.events
    rows = events.rows(Category.CPU_OP)
    is_long = np.zeros(len(events.strings) + 1, np.bool_)
    is_long[events.name[rows[events.dur[rows] >= _LEAST_NS]]] = True
    rows = rows[is_long[events.name[rows]]]
    rows = rows[np.argsort(events.ts[rows], kind="stable")]
    return np.sort(rows[_slow(events.dur[rows], group([events.name[rows]]).group_ids)])


def _slow(ns: NDArray[np.int64], op: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[K]: which calls are early and slow, of calls in their order that take `ns`, by the number of `op`."""
    in_order, by_length = np.argsort(op, kind="stable"), np.lexsort([ns, op])
    num = np.bincount(op)
    begin, slow = np.cumsum(num) - num, np.zeros(len(ns), np.bool_)
    for nth, multiple in enumerate(_LEAST_MULTIPLES):
        ops = np.flatnonzero(num > _FEWEST + nth)
        middle = begin[ops] + (num[ops] - 2 - nth) // 2  # of later calls, if the first ones are the longest
        call = in_order[begin[ops] + nth]
        slow[call] = (ns[call] >= _LEAST_NS) & (ns[call] >= multiple * ns[by_length[middle]])
    return slow
