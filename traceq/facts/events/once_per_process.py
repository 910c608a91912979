"""Calls by which a process starts the device, libraries and kernels: what it does once, however many steps it runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.first_device_use import first_device_use
from traceq.facts.events.kernel_loading import kernel_loading_calls
from traceq.facts.events.library_loading import library_loading_calls
from traceq.model import Trace

__all__ = ["calls_once_per_process"]


def calls_once_per_process(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of (the first use of the device, the start of libraries, launches that load their kernel).

    What runs inside the first use is part of it.
    """
    events, first_use = trace.events, first_device_use(trace)
    libraries, loads = library_loading_calls(trace), kernel_loading_calls(trace)
    if len(first_use):
        begun_ns = events.end[first_use[0]]
        libraries, loads = (rows[events.ts[rows] >= begun_ns] for rows in (libraries, loads))
    return first_use, libraries, loads
