"""Ops of a job on a device that compute on its CPU: long ones without any call of the runtime."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.events.self_time import self_times
from traceq.facts.memo import once_per_trace
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
    rows = rows[~_has_call(trace, rows)]
    if not len(rows):
        return np.empty(0, np.int64)
    times = self_times(trace)
    own_ns = np.zeros(len(events), np.int64)
    own_ns[times.rows] = times.ns
    return ascending(rows[own_ns[rows] >= _LEAST_NS])


def _has_call(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return in which rows a call of the runtime begins on their thread: bool[K]."""
    events, calls, track = trace.events, trace.events.rows(Category.RUNTIME), tracks(trace)
    has_call = np.zeros(len(rows), np.bool_)
    for number in sorted_unique(track[rows]).tolist():
        on_track = np.flatnonzero(track[rows] == number)
        begins = np.sort(events.ts[calls[track[calls] == number]])
        first, last = (np.searchsorted(begins, of[rows[on_track]]) for of in (events.ts, events.end))
        has_call[on_track] = last > first
    return has_call
