"""Calls by which a process starts the device and libraries: what it does once, however many steps it runs."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import DEVICE_STARTS_NS, device_work
from traceq.facts.events.kernel_loads import LONG_CALL_NS
from traceq.facts.events.name_patterns import FREE_CALL, matching
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.events.unrecorded_work import unrecorded_work
from traceq.facts.memo import once_per_trace
from traceq.intervals import ascending, intersect, measure_within, sorted_unique, spans
from traceq.model import Category, Trace

_WAITS = re.compile("memcpy|Synchronize", re.IGNORECASE)
_CREATES = re.compile(r"^(cuda|hip|cu)(Stream|Event)Create")
_ASKS_DEVICE = re.compile(r"^(cuda|hip|cu)DeviceGetAttribute$")


@once_per_trace
def first_device_use(trace: Trace) -> NDArray[np.int64]:
    """Return int64[0 or 1]: the row of the innermost op around the first runtime call that takes very long.

    Of that call where it is in no op. A trace may begin later, while the device is behind: the time in which the op
    waits for work that the trace does not show does not count. None if the device had memory before the trace.
    """
    events, work = trace.events, device_work(trace)
    calls = events.rows(Category.RUNTIME)
    nothing = calls[:0]
    if len(calls) == 0 or len(work) == 0 or _had_memory(trace):
        return nothing
    first = calls[[np.argmin(events.ts[calls])]]
    if matching(events, first, _WAITS).any():
        return nothing
    around, ops = first, host_ops(trace).get(int(tracks(trace)[first[0]]))
    if ops is not None and (index := int(ops.innermost_at(events.ts[first])[0])) >= 0:
        enclosing = [index]
        while ops.parent[enclosing[-1]] >= 0:
            enclosing.append(int(ops.parent[enclosing[-1]]))
        around = ops.rows[enclosing]
    waits = calls[matching(events, calls, _WAITS)]
    waiting = intersect(unrecorded_work(trace), spans(events.ts[waits], events.end[waits]))
    takes_ns = events.dur[around] - measure_within(waiting, events.ts[around], events.end[around])
    is_first = (events.ts[around] <= work.start.min()) & (takes_ns >= DEVICE_STARTS_NS)
    return np.asarray(around[is_first][:1])


def _had_memory(trace: Trace) -> bool:
    """Return whether the first row of a device's memory tells of more than it allocates itself."""
    memory = trace.events.allocations
    first = np.flatnonzero(memory.device_type > 0)[:1]
    return bool((memory.allocated[first] > np.maximum(memory.bytes[first], 0)).any())


@once_per_trace
def library_loading_calls(trace: Trace) -> NDArray[np.int64]:
    """Return int64[L]: rows of the calls by which a library starts, as cuDNN, cuBLAS and their ROCm twins do.

    Frees, and creations of streams and events, that take 100 ms while the device has nothing to do; frees of 1 ms in an
    op whose next call other than a free asks for an attribute of the device. An allocator frees because it has too
    little memory: it waits for the work on the device first, and then allocates.
    """
    events, work = trace.events, device_work(trace)
    calls = events.rows(Category.RUNTIME)
    long = calls[events.dur[calls] >= LONG_CALL_NS]
    long = long[matching(events, long, FREE_CALL) | matching(events, long, _CREATES)]
    num_begun = np.searchsorted(work.start, events.end[long], "left")
    num_ended = np.searchsorted(ascending(work.end), events.ts[long], "right")
    is_start = (num_begun == num_ended) & (events.dur[long] >= DEVICE_STARTS_NS)
    follows = _next_in_op(trace, calls, long)
    is_before_asking = matching(events, long, FREE_CALL) & (follows >= 0) & matching(events, follows, _ASKS_DEVICE)
    return np.asarray(long[is_start | is_before_asking])


def _next_in_op(trace: Trace, calls: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[rows]: the next call, other than a free, of the same innermost op; -1 without one."""
    events, track, follows = trace.events, tracks(trace), np.full(len(rows), -1)
    others = calls[~matching(events, calls, FREE_CALL)]
    others = events.by_start(others)
    for number in sorted_unique(track[rows]).tolist():
        if (ops := host_ops(trace).get(number)) is None:
            continue
        on_track = np.flatnonzero(track[rows] == number)
        following = np.r_[others[track[others] == number], -1]
        after = following[np.searchsorted(events.ts[following[:-1]], events.ts[rows[on_track]], "right")]
        op = ops.innermost_at(events.ts[rows[on_track]])
        is_same = (op >= 0) & (after >= 0) & (op == ops.innermost_at(events.ts[after]))
        follows[on_track] = np.where(is_same, after, -1)
    return follows
