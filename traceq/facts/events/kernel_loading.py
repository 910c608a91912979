"""Launch calls that first load the kernel: CUDA and HIP load a kernel's code when it is launched for the first time."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.memo import once_per_trace
from traceq.grouping import group
from traceq.intervals import ascending
from traceq.model import Category, Trace

__all__ = ["kernel_loading_calls"]

_LAUNCH_KERNEL = re.compile(r"^(cuda|cu|hip)(Module|Ext)?LaunchKernel")

_LEAST_NS, _LEAST_MULTIPLE, _MOST_OUTSTANDING = 1_000_000, 50, 900
"""A launch call that lasts so long, and so many times the median one, does more than launch; behind so many others it
waits for a place in the queue.
"""


@once_per_trace
def kernel_loading_calls(trace: Trace) -> NDArray[np.int64]:
    """Return int64[L]: rows of the calls that launch a kernel for the first time in the trace, and take long."""
    events, work = trace.events, device_work(trace)
    kernels = np.flatnonzero(work.linked & (events.category[work.rows] == Category.KERNEL))
    if len(kernels) == 0:
        return kernels
    kernels = kernels[np.argsort(events.ts[work.call[kernels]], kind="stable")]
    calls = work.call[kernels]
    num_done = np.searchsorted(ascending(work.end[kernels]), events.end[calls], "right")
    took = events.dur[calls]
    is_long = took > max(_LEAST_NS, _LEAST_MULTIPLE * float(np.median(took)))
    is_long &= np.arange(len(calls)) - num_done < _MOST_OUTSTANDING
    first = group([events.name[work.rows[kernels]]]).first
    loading = calls[first[is_long[first]]]
    return np.sort(loading[matching(events, loading, _LAUNCH_KERNEL)])
