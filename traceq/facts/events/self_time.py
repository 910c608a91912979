"""Self time of host ops, in which each is the innermost open one of its thread, and ops that compute on the CPU."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import Nest, thread_nests, tracks
from traceq.facts.memo import once_per_trace
from traceq.frozen import frozen
from traceq.intervals import ascending, sorted_unique
from traceq.model import Category, Trace

VIEW = re.compile(
    r"^(aten::)?(detach|alias|t|transpose|permute|_?(unsafe_)?view|_?reshape\w*|as_strided|expand|select|slice|narrow|"
    r"(un)?squeeze|unbind|chunk|split\w*|(un)?flatten\w*|contiguous)_?$"
)
"""Ops that compute nothing."""
_COMPUTES = re.compile(r"^(?!autograd::|c10d::)\w+::\w+$")
ALLOCATES = re.compile(r"^aten::(new_)?(empty|resize|set)")
_LEAST_NS = 100_000
"""Self time from which an op that launches nothing computes: what is shorter may be what a launch needs."""


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
    nests = thread_nests(trace, rows).values()
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


@once_per_trace
def ops_on_cpu(trace: Trace) -> NDArray[np.int64]:
    """Return int64[C]: the rows of ops with much time of their own, in which no call of the runtime is made.

    Those of a job on a device, whose other ops launch; views and allocations compute nothing.
    """
    events, rows = trace.events, trace.events.rows(Category.CPU_OP)
    rows = rows[events.dur[rows] >= _LEAST_NS]
    computes = matching(events, rows, _COMPUTES) if len(device_work(trace)) else np.zeros(len(rows), np.bool_)
    for others in (VIEW, ALLOCATES):
        computes &= ~matching(events, rows, others)
    rows = rows[computes]
    rows = rows[~calls_runtime(trace, rows)]
    if not len(rows):
        return np.empty(0, np.int64)
    times = self_times(trace)
    own_ns = np.zeros(len(events), np.int64)
    own_ns[times.rows] = times.ns
    return ascending(rows[own_ns[rows] >= _LEAST_NS])


def calls_runtime(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return in which rows a call of the runtime begins on their thread: bool[K]."""
    events, calls, track = trace.events, trace.events.rows(Category.RUNTIME), tracks(trace)
    has_call = np.zeros(len(rows), np.bool_)
    for number in sorted_unique(track[rows]).tolist():
        on_track = np.flatnonzero(track[rows] == number)
        begins = np.sort(events.ts[calls[track[calls] == number]])
        first, last = (np.searchsorted(begins, of[rows[on_track]]) for of in (events.ts, events.end))
        has_call[on_track] = last > first
    return has_call
