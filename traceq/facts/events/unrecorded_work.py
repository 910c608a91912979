"""Work that the trace does not show: gaps in which a device is busy with it, launches without rows, ops and shapes.

A device that idles while launched work is ready starts that work within microseconds. Where it starts much later and
nothing recorded is in its way, something was: work launched before the trace began, of another process, or lost.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.copies import COPY_CALL, TO_HOST
from traceq.facts.events.device_work import DeviceWork, device_work
from traceq.facts.events.graph_replays import capture_spans
from traceq.facts.events.kernel_loads import kernel_loading_calls
from traceq.facts.events.name_patterns import LAUNCHES_KERNEL, matching, rows_named
from traceq.facts.memo import once_per_trace
from traceq.intervals import Spans, contains, count_before, empty, sorted_unique, spans, subtract
from traceq.model import Category, Trace

_LEAST_DELAY_NS, _MOST_DELAY_NS = 200_000, 2_000_000
"""Bounds of the delay that launches do not explain. In 75 traces launches take at most 86 us, gaps at least 1.5 ms."""
_USUAL_DELAYS = 20
"""A start is late that takes longer than the trace's lower quartile by this factor."""

_SYNCHRONIZE = re.compile(r"(Stream|Event|Device|Ctx|Context)Synchronize")
_GATE = re.compile(r"LaunchHostFunc|StreamAddCallback|StreamWaitValue|StreamBatchMemOp|WaitExternalSemaphores")
"""Calls after which a stream waits for the host or for another process, which is a recorded reason."""
_FEWEST = 100
"""Ops from which the holes between their numbers tell something."""
_MANY_HOLES = 0.2
"""Part of the ops behind a hole from which ops are missing everywhere; whole traces have up to 0.015."""


def launches_without_rows(trace: Trace) -> tuple[int, int]:
    """Return how many launches of kernels have no row of the device, and how many there are; those captured apart."""
    events, calls, work = trace.events, trace.events.rows(Category.RUNTIME), device_work(trace)
    calls = calls[matching(events, calls, LAUNCHES_KERNEL) & (events.correlation[calls] > 0)]
    calls = calls[~contains(capture_spans(trace), events.ts[calls])]
    return int((~np.isin(events.correlation[calls], events.correlation[work.rows])).sum()), len(calls)


@once_per_trace
def unrecorded_work(trace: Trace) -> Spans:
    """Return when no recorded work runs although the device must be busy: int64[N, 2] ns.

    From when the earliest of the launched ops could have started until one does, if that takes far longer than launches
    of the trace take, and its call loaded nothing; before the first recorded work also while the host waits for the
    device.
    """
    if trace.only is not None:
        return np.array(trace.only.unrecorded_ns, np.int64).reshape(-1, 2)
    late, loading, limit = _late_starts(trace)
    waited = _waits_for_first_work(trace, device_work(trace), limit) if limit else empty()
    is_load = loading >= 0
    return subtract(spans(*np.concatenate([waited, late[~is_load]]).T), late[is_load])


def ends_of_loads(trace: Trace) -> tuple[Spans, NDArray[np.int64]]:
    """Return when a device that idles loads a kernel after the call that does has returned, and the rows of the calls.

    int64[L, 2] ns, ascending, and int64[L].
    """
    late, loading, _ = _late_starts(trace)
    return late[loading >= 0], loading[loading >= 0]


@once_per_trace
def _late_starts(trace: Trace) -> tuple[Spans, NDArray[np.int64], int]:
    """Return from when work could have started that starts late, until it does: int64[K, 2] ns, ascending.

    And int64[K] the rows of the calls that load its kernel, -1 for other work, and the delay in ns from which on a
    start is late, 0 where none can be.
    """
    work = device_work(trace)
    idle = _idle(work)
    if not work.linked.any() or not len(idle):  # no work takes any time
        return empty(), work.call[:0], 0
    ready, op = _earliest_ready(trace, work, idle[:, 1])
    since = np.maximum(idle[:, 0], ready)
    delay = np.where(op >= 0, idle[:, 1] - since, 0)
    limit = _limit(delay)
    late = np.flatnonzero((delay > limit) & ~_is_gated(trace, work, op))
    calls = work.call[op[late]]
    loads = np.isin(calls, kernel_loading_calls(trace))
    return np.column_stack([since[late], idle[late, 1]]), np.where(loads, calls, -1), limit


def _idle(work: DeviceWork) -> Spans:
    """Return the time before the first work, and between work; it begins with the least int64."""
    busy = spans(work.start, work.end)
    return np.column_stack([np.r_[np.iinfo(np.int64).min, busy[:, 1]][: len(busy)], busy[:, 0]])


def _earliest_ready(
    trace: Trace, work: DeviceWork, instants: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, of the linked work that starts at or after each instant, (ns when its call returned, its index, or -1).

    Of several the one whose call returned first.
    """
    linked = np.flatnonzero(work.linked)
    returned = trace.events.end[work.call[linked]]
    reversed_minimum = np.minimum.accumulate(returned[::-1])[::-1]
    is_new = returned == reversed_minimum
    position = np.where(is_new, np.arange(len(linked)), len(linked))
    first = np.minimum.accumulate(position[::-1])[::-1]
    after = np.searchsorted(work.start[linked], instants, "left")
    index = np.r_[linked[first], -1][after]
    return np.r_[reversed_minimum, np.iinfo(np.int64).max][after], index


def _limit(delay: NDArray[np.int64]) -> int:
    delays = np.sort(delay[delay > 0])
    usual = int(delays[(len(delays) - 1) // 4]) if len(delays) else 0
    return min(max(_USUAL_DELAYS * usual, _LEAST_DELAY_NS), _MOST_DELAY_NS)


def _is_gated(trace: Trace, work: DeviceWork, op: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return before which ops (indices into DeviceWork) their stream may wait for the host or for another process.

    Such a call does not name its stream: any counts that was made after the previous work of the op's stream was
    launched.
    """
    gates = np.sort(trace.events.ts[rows_named(trace.events, _GATE, Category.RUNTIME)])
    launched = np.where(work.linked, trace.events.ts[work.call], np.iinfo(np.int64).min)
    order = np.lexsort((np.arange(len(work)), work.stream))
    previous = np.full(len(work), np.iinfo(np.int64).min)
    same = work.stream[order[1:]] == work.stream[order[:-1]]
    previous[order[1:][same]] = launched[order[:-1][same]]
    return np.asarray(count_before(gates, launched[op]) > count_before(gates, previous[op]))


def _waits_for_first_work(trace: Trace, work: DeviceWork, limit: int) -> Spans:
    """Return how long the host waits for the device before the first recorded work."""
    events, first = trace.events, int(work.start[0])
    to_host = work.call[work.linked & matching(events, work.rows, TO_HOST)]
    waits = np.r_[rows_named(events, _SYNCHRONIZE, Category.RUNTIME), to_host[matching(events, to_host, COPY_CALL)]]
    start, end = events.ts[waits], np.minimum(events.end[waits], first)
    is_long = end - start > limit
    return spans(start[is_long], end[is_long])


@once_per_trace
def missing_ops_share(trace: Trace) -> float:
    """Return the part of its ops that a trace lacks, 0 to 1; 0 of one without holes everywhere.

    The profiler numbers ops in order (`External id`). Annotations and ops of other threads take numbers, too: single
    ones, or many at once.
    """
    number = trace.events.external_id[trace.events.rows(Category.CPU_OP, Category.COMPILING)]
    numbers = sorted_unique(number[number > 0])
    if len(numbers) < _FEWEST or (np.diff(numbers) > 2).mean() < _MANY_HOLES:
        return 0.0
    return 1 - len(numbers) / float(numbers[-1] - numbers[0] + 1)


def has_shapes(trace: Trace) -> bool:
    """Return whether the shapes of the inputs of any op were recorded."""
    return bool((trace.events.shapes[trace.events.rows(Category.CPU_OP)] >= 0).any())


def lacks_shapes(trace: Trace) -> bool:
    """Return whether ops were recorded, none of them with shapes."""
    return len(trace.events.rows(Category.CPU_OP)) > 0 and not has_shapes(trace)
