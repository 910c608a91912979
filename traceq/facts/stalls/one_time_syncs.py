"""Syncs that are none of every step: in the capture of a graph, in a growing pool, around a measurement."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import capture_spans, capturing_calls
from traceq.facts.events.kernels import innermost_ops
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.events.starting_calls import first_device_use, library_loading_calls
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind
from traceq.facts.timeline.once import FILLED, timing_ops
from traceq.facts.timeline.steps import extent, steps
from traceq.intervals import contains, sorted_unique, span_index, spans
from traceq.model import Trace

_FREE = re.compile(r"^(cuda|hip)Free$|^cuMemFree(_v2)?$")
_LEAST_FREE_NS = 20_000
"""Of a call that frees memory: it takes 130 us and more, a free of nothing, by which a thread asks for a context, 5."""


def is_in_graph_capture(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[S]: syncs inside an outermost op that captures a CUDA graph, before, while or after it does.

    Without such an op: in a capture, or before one on the same thread that launches no other work in between.
    """
    events, waits, row_track = trace.events, syncs(trace), tracks(trace)
    calls = capturing_calls(trace)
    inside = _is_in_or_before_capture(trace, calls)
    for track, ops in host_ops(trace).items() if len(calls) else ():
        index = ops.innermost_at(events.ts[calls[row_track[calls] == track]])
        top = ops.outermost()[index[index >= 0]]
        on_track = np.flatnonzero(row_track[waits.rows] == track)
        inside[on_track] |= contains(spans(ops.start[top], ops.end[top]), waits.start[on_track])
    return inside


def _is_in_or_before_capture(trace: Trace, begins: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[S]: syncs within the capture of a graph, or of its preparations: torch synchronizes and frees memory.

    `begins` are the rows of calls that begin a capture.
    """
    events, waits, work, row_track = trace.events, syncs(trace), device_work(trace), tracks(trace)
    captures = contains(capture_spans(trace), waits.start)
    for track in sorted_unique(row_track[begins]).tolist():
        on_track = np.flatnonzero(row_track[waits.rows] == track)
        begin_ns = np.sort(events.ts[begins[row_track[begins] == track]])
        launches = work.call[work.linked]
        launched_ns = np.sort(events.ts[launches[row_track[launches] == track]])
        start_ns = waits.start[on_track]
        following = np.searchsorted(begin_ns, start_ns)
        until_ns = np.append(begin_ns, extent(trace)[1])[following]
        num_launched = np.searchsorted(launched_ns, until_ns) - np.searchsorted(launched_ns, start_ns)
        captures[on_track] |= (following < len(begin_ns)) & (num_launched <= FILLED)
    return captures


def is_of_timing(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[S]: syncs that time work: of a library that tries kernels, and around all launches of the trace."""
    waits, work = syncs(trace), device_work(trace)
    launched = trace.events.ts[work.call[work.linked]]
    if len(launched) == 0:
        return np.zeros(len(waits), np.bool_)
    outside = (waits.start < launched.min()) | (waits.start > launched.max())
    tries = np.isin(innermost_ops(trace, waits.rows), timing_ops(trace))
    return np.asarray(tries | ((waits.kind == SyncKind.DEVICE) & outside))


def allocates_once(trace: Trace) -> str:
    """Return why the allocations of the counted steps are none of every step; "" where they may be.

    `first_use`: the process uses its device for the first time there. `pool_refill`: memory was returned to the driver
    before these steps, but not in them. `pool_growth`: none was, and they enlarge a pool, which ends, unless most of
    several steps do so.
    """
    waits, all_steps = syncs(trace), steps(trace)
    host = all_steps.host[all_steps.counted]
    if (span_index(host, trace.events.ts[first_device_use(trace)]) >= 0).any():
        return "first_use"
    in_steps = (waits.kind == SyncKind.ALLOC) & (span_index(host, waits.start) >= 0)
    if not in_steps.any() or (in_steps & returns_memory(trace)).any():
        return ""
    if num_returned_before(trace):
        return "pool_refill"
    with_one = sorted_unique(span_index(host, waits.start[in_steps]))
    return "" if len(host) > 1 and 2 * len(with_one) > len(host) else "pool_growth"


def num_returned_before(trace: Trace) -> int:
    """Return how often memory was returned to the driver before the counted steps, but for the capture of a graph."""
    all_steps = steps(trace)
    before = syncs(trace).start < all_steps.host[all_steps.counted][0, 0]
    return int((before & returns_memory(trace) & ~is_in_graph_capture(trace)).sum())


def returns_memory(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[S]: frees by which an allocator returns memory to the driver; a library that starts returns none."""
    waits = syncs(trace)
    frees = (waits.kind == SyncKind.ALLOC) & matching(trace.events, waits.rows, _FREE)
    frees &= trace.events.dur[waits.rows] >= _LEAST_FREE_NS
    return np.asarray(frees & ~np.isin(waits.rows, library_loading_calls(trace)))
