"""Time of steps in which nothing but certain collectives runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import collective_calls, collective_kernels
from traceq.facts.events.device_work import device_work
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.intervals import measure_within, span_index, spans
from traceq.model import Trace

__all__ = ["exposed_by_step", "exposed_pct"]


def exposed_by_step(trace: Trace, selected: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[K] ns: the time of each counted window in which only these calls, indices into Calls, run."""
    pieces, calls, all_steps = activity(trace), collective_calls(trace), steps(trace)
    exposed = pieces.among(TimeCategory.EXPOSED_COMM) & in_counted_steps(trace)
    if len(device_work(trace)):
        kernels = collective_kernels(trace)
        exposed &= np.isin(pieces.owner, kernels.work[np.isin(kernels.call, selected)])
        ns = pieces.ns[exposed]
    else:
        rows = calls.rows[selected]
        carrying = spans(trace.events.ts[rows], trace.events.end[rows])
        ns = measure_within(carrying, *pieces.parts[exposed].T)
    by_step = np.bincount(span_index(all_steps.window, pieces.parts[exposed, 0]), ns, len(all_steps))
    return by_step[all_steps.counted].astype(np.int64)


def exposed_pct(trace: Trace, ns: NDArray[np.int64]) -> float:
    """Return the percentage of all exposed communication in counted steps that some of it (int64[K]) is."""
    window = steps(trace).window[steps(trace).counted]
    all_ns = measure_within(activity(trace).when(TimeCategory.EXPOSED_COMM), *window.T)
    return 100 * float(ns.sum()) / max(float(all_ns.sum()), 1.0)
