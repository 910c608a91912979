"""Syncs that are none of every step: in the capture of a graph, in a growing pool, around a measurement."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.first_device_use import first_device_use
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind
from traceq.facts.timeline.steps import steps
from traceq.intervals import contains, span_index, spans
from traceq.model import Category, Trace

__all__ = ["allocates_once", "is_around_all_launches", "is_in_graph_capture", "num_captured_graphs"]

_CAPTURE = re.compile(r"^(cuda|hip|cu)StreamBeginCapture")
_FREE = re.compile(r"^(cuda|hip)Free$|^cuMemFree(_v2)?$")


def is_in_graph_capture(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[S]: syncs inside an outermost op that captures a CUDA graph, before, while or after it does."""
    events, waits, row_track = trace.events, syncs(trace), tracks(trace)
    calls = _captures(trace)
    inside = np.zeros(len(waits), np.bool_)
    for track, ops in host_ops(trace).items() if len(calls) else ():
        index = ops.innermost_at(events.ts[calls[row_track[calls] == track]])
        top = ops.outermost()[index[index >= 0]]
        on_track = np.flatnonzero(row_track[waits.rows] == track)
        inside[on_track] = contains(spans(ops.start[top], ops.end[top]), waits.start[on_track])
    return inside


def num_captured_graphs(trace: Trace) -> int:
    """Return how many CUDA graphs the counted steps capture."""
    all_steps = steps(trace)
    return int((span_index(all_steps.host[all_steps.counted], trace.events.ts[_captures(trace)]) >= 0).sum())


def is_around_all_launches(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[S]: device synchronizes before the first or after the last launch of the trace.

    A measurement synchronizes there, so that it times the work in between.
    """
    waits, work = syncs(trace), device_work(trace)
    launched = trace.events.ts[work.call[work.linked]]
    if len(launched) == 0:
        return np.zeros(len(waits), np.bool_)
    outside = (waits.start < launched.min()) | (waits.start > launched.max())
    return np.asarray((waits.kind == SyncKind.DEVICE) & outside)


def _captures(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of calls that begin to capture a graph."""
    calls = trace.events.rows(Category.RUNTIME)
    return calls[matching(trace.events, calls, _CAPTURE)]


def allocates_once(trace: Trace) -> str:
    """Return why the allocations of the counted steps are none of every step; "" where they may be.

    `first_use`: the process uses its device for the first time there. `pool_growth`: they enlarge a pool, which ends,
    and no memory is returned to the driver.
    """
    waits, all_steps = syncs(trace), steps(trace)
    host = all_steps.host[all_steps.counted]
    if (span_index(host, trace.events.ts[first_device_use(trace)]) >= 0).any():
        return "first_use"
    rows = waits.rows[(waits.kind == SyncKind.ALLOC) & (span_index(host, waits.start) >= 0)]
    return "pool_growth" if len(rows) and not matching(trace.events, rows, _FREE).any() else ""
