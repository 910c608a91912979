"""Pauses of the host: its thread does not run for milliseconds, in whatever call it is, as one that lacks a core."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernel_loads import LONG_CALL_NS
from traceq.facts.events.nesting import tracks
from traceq.facts.events.unrecorded_work import unrecorded_work
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.active_thread import active_thread, launching_threads
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.facts.timeline.compilations import compiling
from traceq.facts.timeline.data_loading import loader_waits
from traceq.facts.timeline.once import FEWEST, MULTIPLES, once
from traceq.facts.timeline.steps import steps
from traceq.grouping import group
from traceq.intervals import Spans, empty, intersect, measure_within, span_index, spans, union
from traceq.model import Category, Trace

PAUSES = "host pauses"
"""Name of all host time in which its threads pause."""
_LEAST_PART = 0.1
"""Part of the steps: any host pauses now and then, for at most 0.08 of them in 14 of 15 jobs with pauses."""


@once_per_trace
def host_pauses(trace: Trace) -> Spans:
    """Return the pauses of the threads that launch: int64[N, 2] ns; none without a device.

    The times between neighbouring starts and ends of a thread's rows are of one kind where these have the same names. A
    pause takes far longer than most times of its kind. It is not of a kind that has one in most steps, or most of their
    time: there something is slow. Pauses are of several kinds, and take a good part of the steps.
    """
    between = _between_rows(trace)
    times, track = between[:, :2], between[:, 2]
    ns, kind = times[:, 1] - times[:, 0], group([between[:, 3], between[:, 4]]).group_ids
    num = np.bincount(kind)
    median_ns = ns[np.lexsort([ns, kind])[np.cumsum(num) - 1 - num // 2]]
    long = np.flatnonzero((ns >= MULTIPLES[0] * median_ns[kind]) & (ns >= LONG_CALL_NS) & (num[kind] > FEWEST))
    long = long[active_thread(trace, times[long, 0]).track == track[long]] if len(long) else long
    own_ns = ns[long] - measure_within(_not_own(trace), *times[long].T)
    long, own_ns = long[own_ns >= LONG_CALL_NS], own_ns[own_ns >= LONG_CALL_NS]
    is_single = ~_recurs(trace, times[long, 0], kind[long])
    long, own_ns = long[is_single], own_ns[is_single]
    of_kind = np.bincount(kind[long], weights=own_ns)
    is_slow = 2 * of_kind > of_kind.sum()
    if np.count_nonzero(of_kind[~is_slow]) < FEWEST:
        return empty()
    pauses = spans(*times[long[~is_slow[kind[long]]]].T)
    begin, end = steps(trace).window[steps(trace).counted].T
    return pauses if measure_within(pauses, begin, end).sum() >= _LEAST_PART * (end - begin).sum() else empty()


def _between_rows(trace: Trace) -> NDArray[np.int64]:
    """Return int64[T, 5]: start and end, ns, of the times between rows of each thread, its track, the two names.

    Only those between names of which one such time is long.
    """
    events, row_track = trace.events, tracks(trace)
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION, Category.PYTHON, Category.RUNTIME)
    columns = [np.empty((0, 5), np.int64)]
    for track in launching_threads(trace) if len(device_work(trace)) else ():
        on_track = rows[row_track[rows] == track]
        time_ns = np.r_[events.end[on_track], events.ts[on_track]]
        order = np.argsort(time_ns, kind="stable")  # ends before starts
        time_ns, name = time_ns[order], np.r_[~events.name[on_track], events.name[on_track]].astype(np.int64)[order]
        pair = name[:-1] * len(events.strings) + name[1:]
        is_kept = np.isin(pair, pair[np.diff(time_ns) >= LONG_CALL_NS]) & (np.diff(time_ns) > 0)
        before, after = np.flatnonzero(is_kept), 1 + np.flatnonzero(is_kept)
        same = np.full(len(before), track)
        columns.append(np.column_stack([time_ns[before], time_ns[after], same, name[before], name[after]]))
    return np.concatenate(columns)


def _not_own(trace: Trace) -> Spans:
    """Return when the host may wait for something, or does what is once.

    A device that works may hold up a call of the runtime, as where its queue is full.
    """
    events, work, waits = trace.events, device_work(trace), blocking_calls(trace)
    calls = events.rows(Category.RUNTIME)
    busy = union(spans(work.start, work.end), unrecorded_work(trace))
    held_up = intersect(spans(events.ts[calls], events.end[calls]), busy)
    others = held_up, spans(waits.start, waits.end), loader_waits(trace), compiling(trace), once(trace).parts
    return spans(*np.concatenate(others).T)


def _recurs(trace: Trace, start: NDArray[np.int64], kind: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of some times are of a kind with one in several steps, half of them or more: bool[L]."""
    host = steps(trace).host[steps(trace).counted]
    in_steps = group([kind, span_index(spans(*host.T), start)]).keys
    num = np.bincount(in_steps[in_steps[:, 1] >= 0, 0], minlength=kind.max(initial=-1) + 1)
    return np.asarray((num[kind] > 1) & (2 * num[kind] >= len(host)))
