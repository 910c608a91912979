"""What a process does once, and counted steps hold: its start of the device, libraries and kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.once_per_process import calls_once_per_process
from traceq.facts.timeline.steps import steps
from traceq.intervals import span_index
from traceq.model import Trace

__all__ = ["LEAST_COLD", "cold_calls", "cold_ns", "cold_share"]

LEAST_COLD = 0.1
"""Part of the counted steps from which they hold a cold start."""


def cold_calls(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of counted steps with (the first use of the device, the start of libraries, loading launches)."""
    counted, events = steps(trace).host[steps(trace).counted], trace.events
    calls = calls_once_per_process(trace)
    first_use, libraries, loads = (rows[span_index(counted, events.ts[rows]) >= 0] for rows in calls)
    return first_use, libraries, loads


def cold_ns(trace: Trace) -> int:
    """Return the time that these calls take, ns in all counted steps."""
    return int(trace.events.dur[np.concatenate(cold_calls(trace))].sum())


def cold_share(trace: Trace) -> float:
    """Return the part of the counted steps that these calls take."""
    window = steps(trace).window[steps(trace).counted]
    return cold_ns(trace) / max(int(np.diff(window).sum()), 1)
