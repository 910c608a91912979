"""Calls that load the code of kernels, once, however many steps a process runs."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import LAUNCHES_KERNEL, matching
from traceq.facts.memo import once_per_trace
from traceq.grouping import group
from traceq.intervals import ascending, sorted_unique
from traceq.model import Category, Trace

LONG_CALL_NS = 1_000_000
"""From when on a call is long."""
_LEAST_MULTIPLE, _MOST_OUTSTANDING = 50, 900
"""A first launch that takes so many times the median of later ones does more than launch; behind so many others it
waits for a place in the queue."""
_LOADS = re.compile(
    r"^(cuda|cu|hip)(Module(Load|GetFunction)|Library(Load|Get)|Kernel(Get|Set)|Func(Get|Set)|GetSymbol|Occupancy|Link)"
)
"""Calls that load the code of a kernel, or the module of a variable, if it is not loaded, and else return at once."""


@once_per_trace
def kernel_loading_calls(trace: Trace) -> NDArray[np.int64]:
    """Return int64[L]: rows of calls that load a kernel, which CUDA and HIP do when it is first asked for or launched.

    Of launches those that are the first of their kernel in the trace, and take long.
    """
    events, work = trace.events, device_work(trace)
    kernels = np.flatnonzero(work.linked & (events.category[work.rows] == Category.KERNEL))
    if len(kernels) == 0:
        return kernels
    kernels = kernels[np.argsort(events.ts[work.call[kernels]], kind="stable")]
    calls = work.call[kernels]
    num_done = np.searchsorted(ascending(work.end[kernels]), events.end[calls], "right")
    took = events.dur[calls]
    first = group([events.name[work.rows[kernels]]]).first
    again = np.delete(took, first)
    is_long = took > max(LONG_CALL_NS, _LEAST_MULTIPLE * float(np.median(again if len(again) else took)))
    is_long &= np.arange(len(calls)) - num_done < _MOST_OUTSTANDING
    loading = calls[first[is_long[first]]]
    asking = events.rows(Category.RUNTIME)
    asking = asking[events.dur[asking] >= LONG_CALL_NS]
    return sorted_unique(loading[matching(events, loading, LAUNCHES_KERNEL)], asking[matching(events, asking, _LOADS)])
