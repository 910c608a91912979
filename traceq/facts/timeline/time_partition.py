"""Partition of a trace's time: one category, one phase and one owner for every instant.

The categories and their priorities are those of docs/method.md, "Exact partition". The boundaries of all relevant
intervals are merged into one sorted list; between two neighbours nothing changes, so each piece is classified by its
start.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from traceq.claims.limits import LARGE
from traceq.facts.events.device_work import (
    BACKEND_OF_DEVICES,
    DeviceWork,
    device_work,
    lacks_device_rows,
    lacks_host_ops,
    threads_of_autograd,
)
from traceq.facts.events.kernels import COMMUNICATION_OP, COMMUNICATION_ROW, is_communication, is_spin_wait
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.events.unrecorded_work import ends_of_loads, unrecorded_work
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.blocking_copies_and_syncs import BlockingCalls, blocking_calls
from traceq.facts.timeline.compilations import compiling
from traceq.facts.timeline.data_loading import loader_waits
from traceq.facts.timeline.once import capture_times, once, search_spans
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import extent, main_track, steps
from traceq.frozen import frozen
from traceq.grouping import by_value
from traceq.intervals import (
    Spans,
    contains,
    count_before,
    earliest_owner,
    empty,
    measure_within,
    sorted_unique,
    span_index,
    spans,
    subtract,
    union,
)
from traceq.model import Category, Trace

_WAITING_OP = re.compile(r"^_?c10d_functional::wait_tensor$")
_NODE = re.compile(r"^autograd::engine::|^torch::autograd::AccumulateGrad$|Backward\d*$")
_PHASE = re.compile(r"^(?!.*(forward|fwd)).*(backward|\bbwd)", re.IGNORECASE)
_BACKWARD_OP = re.compile(r"Backward[0-9]*$")


class TimeCategory(IntEnum):
    """Category of an instant; the names, in lower case, are those of the JSON."""

    COMPUTE = 0
    EXPOSED_COMM = 1
    EXPOSED_MEMCPY = 2
    SYNC_WAIT = 3
    ALLOC_WAIT = 4
    HOST_BOUND = 5
    LAUNCH_LATENCY = 6
    TAIL = 7
    CPU_COMPUTE = 8
    DATALOAD_WAIT = 9
    PYTHON = 10
    UNRECORDED = 11
    SPIN_WAIT = 12
    COMPILING = 13
    ONCE = 14


BUSY = (TimeCategory.COMPUTE, TimeCategory.EXPOSED_COMM, TimeCategory.EXPOSED_MEMCPY)
"""The device computes, communicates or copies."""

IDLE = (
    TimeCategory.SYNC_WAIT,
    TimeCategory.ALLOC_WAIT,
    TimeCategory.HOST_BOUND,
    TimeCategory.COMPILING,
    TimeCategory.ONCE,
    TimeCategory.LAUNCH_LATENCY,
    TimeCategory.TAIL,
)
"""The device is idle."""

HOST_CAUSED = (TimeCategory.SYNC_WAIT, TimeCategory.ALLOC_WAIT, TimeCategory.HOST_BOUND)
"""The device is idle because the host has not yet launched the next piece of work."""


@frozen(eq=False)
class Activity:
    """M pieces of time, sorted and without gaps.

    `parts` int64[M, 2] ns; `category` int8[M]; `phase` int32[M]; `owner` int32[M] into DeviceWork, the op that runs on
    the device or else the next one, -1 without one; `call` int32[M] into BlockingCalls during a sync_wait or
    alloc_wait, else -1.
    """

    parts: Spans
    category: NDArray[np.int8]
    phase: NDArray[np.int32]
    owner: NDArray[np.int32]
    call: NDArray[np.int32]

    @property
    def ns(self) -> NDArray[np.int64]:
        """int64[M]: length of each piece."""
        return self.parts[:, 1] - self.parts[:, 0]

    def among(self, *categories: TimeCategory) -> NDArray[np.bool_]:
        """Return which pieces are of one of these categories: bool[M]."""
        mask = np.zeros(len(self.category), np.bool_)
        for code in categories:
            mask |= self.category == int(code)
        return mask

    def ns_of_work(self, chosen: NDArray[np.bool_], num_work: int) -> NDArray[np.int64]:
        """Return int64[D] ns: the time of some pieces, bool[M], by the device work that runs in them."""
        total, owned = np.zeros(num_work, np.int64), chosen & (self.owner >= 0)
        np.add.at(total, self.owner[owned], self.ns[owned])
        return total

    def when(self, *categories: TimeCategory) -> Spans:
        """Return the time of these categories."""
        mask = np.r_[False, self.among(*categories), False]
        opens, closes = np.flatnonzero(mask[1:] & ~mask[:-1]), np.flatnonzero(mask[:-1] & ~mask[1:])
        return np.column_stack([self.parts[opens, 0], self.parts[closes - 1, 1]])


@once_per_trace
def activity(trace: Trace) -> Activity:
    """Return the partition of the whole trace; no piece crosses the boundary of a step's window."""
    return _device_activity(trace) if len(device_work(trace)) else _cpu_activity(trace)


@once_per_trace
def unrecorded(trace: Trace) -> Spans:
    """Return when nothing recorded runs, but work that the trace does not show: int64[N, 2] ns.

    All time before the windows counts in which no recorded work runs, if the trace opens with such work.
    """
    gaps, opens_ns = unrecorded_work(trace), steps(trace).opens_ns
    if opens_ns is None:
        return gaps
    work = device_work(trace)
    return subtract(union(gaps, np.array([[extent(trace)[0], opens_ns]])), spans(work.start, work.end))


@once_per_trace
def in_counted_steps(trace: Trace) -> NDArray[np.bool_]:
    """Return which pieces of the activity are in the window of a counted step: bool[M]."""
    return contains(steps(trace).window[steps(trace).counted], activity(trace).parts[:, 0])


def lost_once_ns(trace: Trace) -> int:
    """Return how much of the counted steps is once."""
    done = activity(trace)
    return int(done.ns[in_counted_steps(trace) & (done.category == TimeCategory.ONCE)].sum())


def lost_once_share(trace: Trace) -> float:
    """Return which part of the counted steps is once."""
    return lost_once_ns(trace) / max(int(np.diff(steps(trace).window[steps(trace).counted]).sum()), 1)


def is_told_once(once_ns: float, steps_ns: float) -> bool:
    """Return whether so much of the steps is once that a claim tells it, and all others are about the rest."""
    return once_ns > 0 and once_ns >= LARGE * steps_ns


@frozen
class ShareBase:
    """What shares of the counted steps are of: ns of each, without what is once where a claim tells it (`is_rest`)."""

    steps_ns: tuple[int, ...]
    is_rest: bool

    @property
    def ns(self) -> NDArray[np.float64]:
        """float64[K] ns; at least 1, as of a step that is wholly once."""
        return np.maximum(np.array(self.steps_ns, np.float64), 1.0)

    @property
    def share_of(self) -> str | None:
        """The measure of that name."""
        return "rest" if self.is_rest else None


@once_per_trace
def share_base(trace: Trace) -> ShareBase:
    """Return what shares of recurring work are of."""
    windows = steps(trace).window[steps(trace).counted]
    steps_ns = np.diff(windows)[:, 0]
    is_rest = is_told_once(lost_once_ns(trace), float(steps_ns.sum()))
    if is_rest:
        steps_ns = steps_ns - measure_within(activity(trace).when(TimeCategory.ONCE), *windows.T)
    return ShareBase(tuple(steps_ns.tolist()), is_rest)


@once_per_trace
def ns_by_phase(trace: Trace) -> NDArray[np.int64]:
    """Return the time of the counted steps by phase and category: int64[P, len(TimeCategory)] ns."""
    pieces, counted = activity(trace), np.flatnonzero(in_counted_steps(trace))
    ns = np.zeros((len(phases(trace).names), len(TimeCategory)), np.int64)
    cell = pieces.phase[counted] * len(TimeCategory) + pieces.category[counted]
    np.add.at(ns.reshape(-1), cell, pieces.ns[counted])
    return ns


def _device_activity(trace: Trace) -> Activity:
    """Return the partition of a trace with device work."""
    work, calls, labels = device_work(trace), blocking_calls(trace), phases(trace)
    launch_ends = trace.events.end[work.call[work.linked]]
    opening = _opening(trace, work)
    ends = calls.start, calls.end, labels.main.parts.ravel(), unrecorded(trace).ravel(), opening.since
    only_once, loads = once(trace).parts, ends_of_loads(trace)[0]
    once_parts = _compiling(trace).ravel(), only_once.ravel(), search_spans(trace).ravel(), loads.ravel()
    pieces = _pieces(trace, work.start, work.end, launch_ends, *once_parts, *ends)
    start = pieces[:, 0]
    category, owner = np.full(len(start), -1, np.int8), np.full(len(start), -1, np.int32)
    call = owner.copy()
    is_kernel, is_comm = trace.events.category[work.rows] == Category.KERNEL, is_communication(trace)
    spins = is_spin_wait(trace)
    for code, mask in (
        (TimeCategory.SPIN_WAIT, spins),
        (TimeCategory.EXPOSED_MEMCPY, ~is_kernel),
        (TimeCategory.EXPOSED_COMM, is_comm),
        (TimeCategory.COMPUTE, is_kernel & ~is_comm & ~spins),  # the highest priority comes last
    ):
        if not mask.any():
            continue
        running = _earliest_open(work.start, work.end, np.flatnonzero(mask), start)
        busy = np.flatnonzero(running >= 0)
        category[busy], owner[busy] = code, running[busy]
    idle = np.flatnonzero(owner < 0)
    category[idle], owner[idle], call[idle] = _idle_activity(trace, work, calls, opening, start[idle])
    unlaunched = idle[np.isin(category[idle], (TimeCategory.HOST_BOUND, TimeCategory.TAIL))]
    category[unlaunched[contains(_compiling(trace), start[unlaunched])]] = TimeCategory.COMPILING
    unlaunched = unlaunched[category[unlaunched] != TimeCategory.COMPILING]
    category[unlaunched[contains(only_once, start[unlaunched])]] = TimeCategory.ONCE
    allocating = idle[category[idle] == TimeCategory.ALLOC_WAIT]
    captured = allocating[contains(capture_times(trace), start[allocating])]
    category[captured], call[captured] = TimeCategory.ONCE, -1
    searched = _is_search(trace, work, start, owner)
    category[searched], call[searched] = TimeCategory.ONCE, -1
    loading = idle[contains(loads, start[idle])]
    category[loading], call[loading] = TimeCategory.ONCE, -1
    hidden = idle[contains(unrecorded(trace), start[idle])]
    category[hidden], call[hidden] = TimeCategory.UNRECORDED, -1
    by_work = np.isin(category, (*BUSY, TimeCategory.SPIN_WAIT, TimeCategory.LAUNCH_LATENCY))
    phase = np.where(by_work, labels.work_phase[owner], labels.main_phase_at(start)).astype(np.int32)
    phase[hidden] = labels.unattributed
    return Activity(pieces, category, phase, owner, call)


def _is_search(
    trace: Trace, work: DeviceWork, instants: NDArray[np.int64], owner: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return bool[M]: instants in a search for the fastest kernel, unless the device is busy with what came before."""
    searches = search_spans(trace)
    is_tried = contains(searches, trace.events.ts[work.call]) & work.linked
    return np.asarray(contains(searches, instants) & np.r_[is_tried, True][owner])


@once_per_trace
def _compiling(trace: Trace) -> Spans:
    """Return when the host compiles; a capture of a CUDA graph, which torch.compile counts as that, is once."""
    return subtract(compiling(trace), capture_times(trace))


@frozen
class _Opening:
    """Work launched before the first recorded call that runs before all other: int64[K] into DeviceWork, by start.

    `since`: ns of that call, int64[1], or int64[0] without such work. Before it the host may still have launched.
    """

    work: NDArray[np.int64]
    since: NDArray[np.int64]


def _opening(trace: Trace, work: DeviceWork) -> _Opening:
    """Return the work that waits on the device when calls begin to be recorded."""
    rows, linked = trace.events.rows(Category.RUNTIME), work.start[work.linked]
    if not len(rows) or not len(linked):
        return _Opening(np.empty(0, np.int64), np.empty(0, np.int64))
    first = trace.events.ts[rows].min(keepdims=True)
    index = np.flatnonzero(work.before_window & (work.start < linked[0]) & (work.start > first))
    return _Opening(index, first[: len(index)])


def _idle_activity(
    trace: Trace, work: DeviceWork, calls: BlockingCalls, opening: _Opening, instants: NDArray[np.int64]
) -> tuple[NDArray[np.int8], NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each instant of an idle device, (category, next launched op, blocking call that delays it).

    The op is an index into DeviceWork, the call into BlockingCalls; -1 without one.
    """
    linked = np.flatnonzero(work.linked)
    upcoming = np.r_[linked, -1][count_before(work.start[linked], instants)]
    launch = work.call[upcoming]
    is_launched = instants >= trace.events.end[launch]
    category = np.where(is_launched, TimeCategory.LAUNCH_LATENCY, TimeCategory.HOST_BOUND).astype(np.int8)
    category[upcoming < 0] = TimeCategory.TAIL
    opens = np.flatnonzero(instants >= opening.since[0]) if len(opening.work) else np.empty(0, np.int64)
    next_early = np.r_[opening.work, -1][count_before(work.start[opening.work], instants[opens])]
    opens, next_early = opens[next_early >= 0], next_early[next_early >= 0]
    upcoming[opens], category[opens] = next_early, TimeCategory.LAUNCH_LATENCY
    waits_in = np.full(len(instants), -1)
    blocked = np.flatnonzero(
        contains(spans(calls.start, calls.end), instants) & work.linked[upcoming] & (upcoming >= 0)
    )
    launched, begins = trace.events.ts[launch[blocked]], work.start[upcoming[blocked]]
    main = np.full(len(blocked), main_track(trace))
    for track in (tracks(trace)[launch[blocked]], main):  # a call of the main thread takes precedence
        call = _open_call(calls, track, instants[blocked])
        delays = (launched > calls.start[call]) & (calls.end[call] <= begins)  # work launched earlier starts no sooner
        waits = np.flatnonzero((call >= 0) & delays)
        is_alloc = calls.is_alloc[call[waits]]
        category[blocked[waits]] = np.where(is_alloc, TimeCategory.ALLOC_WAIT, TimeCategory.SYNC_WAIT)
        waits_in[blocked[waits]] = call[waits]
    return category, upcoming, waits_in


def _open_call(calls: BlockingCalls, track: NDArray[np.int64], instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the blocking call open at each instant on the given thread, -1 if none is."""
    call, of_thread = np.full(len(instants), -1), dict(by_value(calls.track))
    for number, index in by_value(track):
        if (selected := of_thread.get(number)) is not None:
            call[index] = _earliest_open(calls.start, calls.end, selected, instants[index])
    return call


def _earliest_open(
    start: NDArray[np.int64], end: NDArray[np.int64], selected: NDArray[np.int64], instants: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return, of the selected intervals open at each instant, the one that started first: int64[K], -1 if none is."""
    parts, owners = earliest_owner(start[selected], end[selected])
    return np.asarray(np.r_[selected[owners], -1][span_index(parts, instants)])


def _in_waiting_ops(trace: Trace) -> Spans:
    """Return when the innermost op of the main thread is one that waits for a functional collective."""
    ops = host_ops(trace).get(main_track(trace))
    if ops is None or not (waits := matching(trace.events, ops.rows, _WAITING_OP)).any():
        return empty()
    edges = sorted_unique(ops.start, ops.end)
    innermost = ops.innermost_at(edges[:-1])
    return spans(*np.column_stack([edges[:-1], edges[1:]])[(innermost >= 0) & waits[innermost]].T)


def _cpu_activity(trace: Trace) -> Activity:
    """Return the partition of a trace without a device: the main thread computes, compiles, waits or runs Python.

    A node of autograd computes in its ops; around them hooks run, such as those of FSDP, which wait for collectives.
    So does an op of a functional collective, which is within ops of a tensor whose parts are on all ranks.
    Where only the device's rows are missing, calls of the runtime, and one that starts a collective of devices, are ops
    like any other, as are those of autograd's threads, for which the main one waits; without their rows that is not
    known to run Python in backward. Of a trace without an op, an annotation or Python nothing is known.
    """
    events = trace.events
    ops, marks = events.rows(Category.CPU_OP), events.rows(Category.ANNOTATION, Category.CPU_OP)
    comm = marks[matching(events, marks, COMMUNICATION_ROW)]
    is_comm_op = matching(events, ops, COMMUNICATION_OP) | matching(events, ops, COMMUNICATION_ROW)
    if lacks_device_rows(trace):
        comm = comm[~matching(events, comm, BACKEND_OF_DEVICES)]
        is_comm_op &= len(comm) > 0
        calls = events.rows(Category.RUNTIME)
        ops, is_comm_op = np.r_[ops, calls], np.r_[is_comm_op, np.zeros(len(calls), np.bool_)]
    compute = ops[~is_comm_op & np.isin(tracks(trace)[ops], [main_track(trace), *threads_of_autograd(trace)])]
    in_node = compute[~matching(events, compute, _NODE)]
    waiting = empty() if lacks_device_rows(trace) else _in_waiting_ops(trace)
    communicating = union(spans(events.ts[comm], events.end[comm]), waiting)
    layers = (
        (TimeCategory.UNRECORDED, unrecorded_backward(trace)),
        (TimeCategory.DATALOAD_WAIT, loader_waits(trace)),
        (TimeCategory.CPU_COMPUTE, spans(events.ts[compute], events.end[compute])),
        (TimeCategory.EXPOSED_COMM, communicating),
        (TimeCategory.CPU_COMPUTE, spans(events.ts[in_node], events.end[in_node])),
        (TimeCategory.EXPOSED_COMM, waiting),
        (TimeCategory.ONCE, subtract(once(trace).parts, communicating)),
        (TimeCategory.COMPILING, subtract(_compiling(trace), communicating)),  # the highest priority comes last
    )
    pieces = _pieces(trace, phases(trace).main.parts.ravel(), *(layer.ravel() for _, layer in layers))
    start = pieces[:, 0]
    nothing_known = lacks_host_ops(trace)
    category = np.full(len(start), TimeCategory.UNRECORDED if nothing_known else TimeCategory.PYTHON, np.int8)
    for code, layer in layers:
        category[contains(layer, start)] = code
    none = np.full(len(start), -1, np.int32)
    return Activity(pieces, category, phases(trace).main_phase_at(start).astype(np.int32), none, none)


def _pieces(trace: Trace, *boundaries: NDArray[np.int64]) -> Spans:
    """Return the trace's time, from its start to its end, cut at all boundaries and step windows: int64[M, 2] ns.

    A view of the M + 1 edges, each of which ends one piece and begins the next.
    """
    start, end = extent(trace)
    edges = sorted_unique(np.array([start, end]), steps(trace).window.ravel(), *boundaries)
    edges = edges[(edges >= start) & (edges <= end)]
    return sliding_window_view(edges, 2)


@once_per_trace
def unrecorded_backward(trace: Trace) -> Spans:
    """Return the backward phases of the main thread if no thread has their ops: int64[N, 2] ns.

    Ops of devices run backward on a thread of the engine, for which the main thread waits. Recorded stacks show that.
    """
    events = trace.events
    ops = events.rows(Category.CPU_OP)
    runs_backward = bool(matching(events, ops, _BACKWARD_OP).any() or (events.forward_thread[ops] > 0).any())
    if not lacks_device_rows(trace) or runs_backward or len(events.rows(Category.PYTHON)):
        return empty()
    labels = phases(trace)
    is_backward = np.array([bool(_PHASE.search(name)) for name in labels.names])
    return spans(*labels.main.parts[is_backward[labels.main.label]].T)
