"""Calls in which a library starts: cuDNN, cuBLAS and their ROCm twins free nothing at first, which loads their code."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.memo import once_per_trace
from traceq.model import Category, Trace

__all__ = ["library_loading_calls"]

_FREE = re.compile(r"^(cuda|hip)Free$|^cuMemFree(_v2)?$")

_LEAST_NS = 100_000_000
"""A free that lasts so long has something else to do: it returns memory in milliseconds once the device is idle."""


@once_per_trace
def library_loading_calls(trace: Trace) -> NDArray[np.int64]:
    """Return int64[L]: rows of the frees that take 100 ms or more while the device has nothing to do.

    An allocator frees because it has too little memory, and waits for the work on the device first.
    """
    events, work = trace.events, device_work(trace)
    calls = events.rows(Category.RUNTIME)
    calls = calls[events.dur[calls] >= _LEAST_NS]
    calls = calls[matching(events, calls, _FREE)]
    start, end = events.ts[calls], events.end[calls]
    num_begun = np.searchsorted(work.start, end, "left")
    num_ended = np.searchsorted(np.sort(work.end), start, "right")
    return np.asarray(calls[num_begun == num_ended])
