"""Calls in which a library starts: cuDNN, cuBLAS and their ROCm twins load their code in the first call that they make.

That is a free of nothing, or the creation of a stream or an event.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.memo import once_per_trace
from traceq.intervals import ascending, sorted_unique
from traceq.model import Category, Trace

__all__ = ["library_loading_calls"]

_FREE = re.compile(r"^(cuda|hip)Free$|^cuMemFree(_v2)?$")
_CREATES = re.compile(r"^(cuda|hip|cu)(Stream|Event)Create")
_ASKS_DEVICE = re.compile(r"^(cuda|hip|cu)DeviceGetAttribute$")

_LEAST_NS = 100_000_000
"""A call that lasts so long has something else to do: it returns memory in milliseconds once the device is idle, and
creates an event in microseconds.
"""
_LEAST_NS_OF_ASKING = 1_000_000
"""After a shorter free a library asks what the device can do, where an allocator allocates; below it loads nothing."""


@once_per_trace
def library_loading_calls(trace: Trace) -> NDArray[np.int64]:
    """Return int64[L]: rows of the calls by which a library starts, while the device has nothing to do.

    Frees, and creations of streams and events, that take 100 ms; frees of 1 ms where the next call of the same op other
    than a free asks for an attribute of the device. An allocator frees because it has too little memory: it waits for
    the work on the device first, and then allocates.
    """
    events, work = trace.events, device_work(trace)
    calls = events.rows(Category.RUNTIME)
    long = calls[events.dur[calls] >= _LEAST_NS_OF_ASKING]
    long = long[matching(events, long, _FREE) | matching(events, long, _CREATES)]
    start, end = events.ts[long], events.end[long]
    num_begun = np.searchsorted(work.start, end, "left")
    num_ended = np.searchsorted(ascending(work.end), start, "right")
    long = long[num_begun == num_ended]
    return np.asarray(long[(events.dur[long] >= _LEAST_NS) | _is_free_before_asking(trace, calls, long)])


def _is_free_before_asking(trace: Trace, calls: NDArray[np.int64], long: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[long]: frees after which the same op asks for an attribute of the device before any other call."""
    events, track, asks = trace.events, tracks(trace), np.zeros(len(long), np.bool_)
    is_free = matching(events, long, _FREE)
    others = calls[~matching(events, calls, _FREE)]
    others = others[np.argsort(events.ts[others], kind="stable")]
    is_asking = matching(events, others, _ASKS_DEVICE)
    for number in sorted_unique(track[long[is_free]]).tolist():
        if (ops := host_ops(trace).get(number)) is None:
            continue
        following = np.flatnonzero(track[others] == number)
        on_track = np.flatnonzero(is_free & (track[long] == number))
        after = np.searchsorted(events.ts[others[following]], events.ts[long[on_track]], "right")
        on_track, after = on_track[after < len(following)], following[after[after < len(following)]]
        op = ops.innermost_at(events.ts[long[on_track]])
        is_same = (op >= 0) & (op == ops.innermost_at(events.ts[others[after]]))
        asks[on_track] = is_same & is_asking[after]
    return asks
