"""Self time of host ops: every instant of a thread belongs to the innermost open op or runtime call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.nesting import Nest, thread_nests, tracks
from traceq.frozen import frozen
from traceq.model import Category, Trace


@frozen(eq=False)
class SelfTimes:
    """H ops and runtime calls of all threads, grouped by thread.

    `rows` int64[H] into Events, `track` int64[H], `ns` int64[H]. The self times of a thread add up to the time in which
    any of its ops or calls is open, without compiling. `is_call` bool[H]: False for an op directly inside one of its
    own name, as an op is that calls another overload of itself.
    """

    rows: NDArray[np.int64]
    track: NDArray[np.int64]
    ns: NDArray[np.int64]
    is_call: NDArray[np.bool_]


def self_times(trace: Trace) -> SelfTimes:
    """Return the self time of every CPU op and runtime call."""
    rows = trace.events.rows(Category.CPU_OP, Category.RUNTIME, Category.COMPILING)
    nests = thread_nests(trace, rows).whole
    none = np.empty(0, np.int64)
    of_nests = np.concatenate([none, *(nest.rows for nest in nests)])
    kept = trace.events.category[of_nests] != Category.COMPILING
    return SelfTimes(
        rows=of_nests[kept],
        track=tracks(trace)[of_nests[kept]],
        ns=np.concatenate([none, *map(self_ns, nests)])[kept],
        is_call=np.concatenate([none, *(_is_call(trace, nest) for nest in nests)]).astype(np.bool_)[kept],
    )


def self_ns(nest: Nest) -> NDArray[np.int64]:
    """Return the time in which each interval of a nest is the innermost open one: int64[M] ns."""
    next_start = np.r_[nest.start, np.iinfo(np.int64).max][nest.next_outside()]
    covered: NDArray[np.int64] = np.minimum(nest.end, next_start) - nest.start
    self_, inner = covered.copy(), nest.parent >= 0
    np.subtract.at(self_, nest.parent[inner], covered[inner])
    return self_


def _is_call(trace: Trace, nest: Nest) -> NDArray[np.bool_]:
    name = trace.events.name[nest.rows].astype(np.int64)
    return np.asarray(nest.outermost_alike(name) == np.arange(len(name)))
