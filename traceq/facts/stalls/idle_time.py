"""Causes of the device's idle time: each idle piece with the host activity at that time.

The pieces are those of the partition, cut further where the host enters or leaves an op, an annotation or a Python
frame, so that each op is charged its self time only.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.claims.limits import NEARLY_ALL
from traceq.facts.events.device_work import device_work, lacks_host_ops
from traceq.facts.events.name_patterns import matching, unique_inverse
from traceq.facts.events.nesting import host_boundaries, host_ops, thread_nests, tracks
from traceq.facts.events.unrecorded_work import ends_of_loads
from traceq.facts.memo import once_per_trace
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.active_thread import ActiveThread, active_thread
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.data_loading import LOADER_RANGE, loader_waits
from traceq.facts.timeline.host_pauses import host_pauses
from traceq.facts.timeline.once import OnceKind, once
from traceq.facts.timeline.phases import other_annotations
from traceq.facts.timeline.python_places import lines_between_ops
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import IDLE, Activity, TimeCategory, activity, in_counted_steps
from traceq.frozen import frozen
from traceq.grouping import Numbers, group
from traceq.intervals import Spans, contains, count_before, cut, sorted_unique, span_index
from traceq.model import Category, Trace


class HostLabels:
    """Texts of names and lines -> their numbers, in order of first use; "" is 0."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.texts: dict[str, int] = {"": 0}

    def on_host(self, active: ActiveThread) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return (innermost op, line) of the active thread at each of its times."""
        origin = origins(self.trace, active.track, active.time_ns, active.time_ns, innermost=active.op)
        return self.numbered(origin.texts)[origin.op], self.numbered(origin.texts)[origin.line]

    def between_ops(self, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the line of the main thread at some times in no op, by the table that a recording embeds."""
        between = lines_between_ops(self.trace)
        return np.append(self.numbered(between.lines), 0)[between.line_at(time_ns)]

    def of_syncs(self, call: Numbers) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return (op or else the call itself, line) of some blocking calls."""
        all_syncs = syncs(self.trace)
        events, origin = self.trace.events, all_syncs.origin
        numbers = self.numbered(origin.texts)
        calls = self._numbers_of_names(events.name[all_syncs.rows[call]])
        return np.where(origin.op[call] > 0, numbers[origin.op[call]], calls), numbers[origin.line[call]]

    def of_launches(self, call: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return (op, line) that launched some work, given the rows of the launching calls."""
        events = self.trace.events
        rows, inverse = unique_inverse(call, len(events))
        origin = origins(self.trace, tracks(self.trace)[rows], events.ts[rows], events.end[rows], rows)
        numbers = self.numbered(origin.texts)
        return numbers[origin.op][inverse], numbers[origin.line][inverse]

    def of_kernels(self, work: Numbers) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return (op that launched it or else its own name, line) of some device work."""
        events, all_work = self.trace.events, device_work(self.trace)
        names, line = self._numbers_of_names(events.name[all_work.rows[work]]), np.zeros(len(work), np.int32)
        linked = np.flatnonzero(all_work.linked[work])
        op, line[linked] = self.of_launches(all_work.call[work[linked]])
        names[linked] = np.where(op > 0, op, names[linked])
        return names, line

    def around(self, track: NDArray[np.int64], time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the innermost annotation of each thread at some times; step marks and phases do not count."""
        events, rows = self.trace.events, other_annotations(self.trace)
        rows = rows[~matching(events, rows, LOADER_RANGE)]
        around, names = thread_nests(self.trace, rows).rows_at(track, time_ns), np.zeros(len(time_ns), np.int64)
        names[around >= 0] = self._numbers_of_names(events.name[around[around >= 0]])
        return names

    def _numbers_of_names(self, names: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the numbers of some names of events."""
        strings = self.trace.events.strings
        is_used, numbers = np.zeros(len(strings), np.bool_), np.zeros(len(strings), np.int32)
        is_used[names] = True
        for name in np.flatnonzero(is_used).tolist():
            numbers[name] = self.texts.setdefault(strings[name], len(self.texts))
        return numbers[names]

    def numbered(self, texts: tuple[str, ...]) -> NDArray[np.int32]:
        """Return the numbers of some texts, new ones included."""
        return np.array([self.texts.setdefault(text, len(self.texts)) for text in texts], np.int32)


class IdleCause(IntEnum):
    """Why the device does nothing; JSON uses the names in lower case with spaces.

    HOST: the host does something that the trace does not have, as it has no host ops. HOST_PAUSE: its thread does not
    run.
    """

    SYNC = 0
    ALLOCATION = 1
    DATA_LOADER = 2
    HOST_OP = 3
    PYTHON = 4
    LAUNCH_QUEUE = 5
    END = 6
    SPIN_WAIT = 7
    HOST = 8
    COMPILING = 9
    ONCE = 10
    HOST_PAUSE = 11


_CAUSE = {
    TimeCategory.SYNC_WAIT: IdleCause.SYNC,
    TimeCategory.ALLOC_WAIT: IdleCause.ALLOCATION,
    TimeCategory.HOST_BOUND: IdleCause.HOST_OP,
    TimeCategory.LAUNCH_LATENCY: IdleCause.LAUNCH_QUEUE,
    TimeCategory.TAIL: IdleCause.END,
    TimeCategory.DATALOAD_WAIT: IdleCause.DATA_LOADER,
    TimeCategory.PYTHON: IdleCause.PYTHON,
    TimeCategory.SPIN_WAIT: IdleCause.SPIN_WAIT,
    TimeCategory.COMPILING: IdleCause.COMPILING,
    TimeCategory.ONCE: IdleCause.ONCE,
}


@frozen(eq=False)
class Idleness:
    """P pieces of idle time in the counted steps, sorted by time.

    `parts` int64[P, 2] ns; `category` int8[P], the category of the partition; `cause` int8[P] of IdleCause; `phase`
    int32[P]; `name`, `line` int32[P] into `texts`: the op, or for Python the annotation around it; `gap` int32[P]:
    pieces of one gap of one step share a number.
    """

    texts: tuple[str, ...]
    parts: Spans
    category: NDArray[np.int8]
    cause: NDArray[np.int8]
    phase: NDArray[np.int32]
    name: NDArray[np.int32]
    line: NDArray[np.int32]
    gap: NDArray[np.int32]


@once_per_trace
def idleness(trace: Trace) -> Idleness:
    """Return all idle pieces, and those in which only spin waits run.

    Without a device: when the main thread waits for data or runs Python between ops.
    """
    partition, idle = activity(trace), _idle_pieces(trace)
    parts, piece, active = _cut_at_host_changes(trace, partition, idle)
    category, time_ns = partition.category[piece], active.time_ns  # one host activity per piece
    cause = np.array([_CAUSE.get(TimeCategory(code), 0) for code in range(len(TimeCategory))], np.int8)[category]
    host = np.flatnonzero(cause == IdleCause.HOST_OP)
    cause[host[contains(host_pauses(trace), time_ns[host])]] = IdleCause.HOST_PAUSE
    cause[host[contains(loader_waits(trace), time_ns[host])]] = IdleCause.DATA_LOADER
    labels = HostLabels(trace)
    name, line = np.zeros(len(parts), np.int32), np.zeros(len(parts), np.int32)
    host = np.flatnonzero(np.isin(cause, (IdleCause.HOST_OP, IdleCause.PYTHON, IdleCause.ONCE)))
    name[host], line[host] = labels.on_host(active.take(host))
    without_op = host[(name[host] == 0) & (cause[host] != IdleCause.ONCE)]
    cause[without_op] = IdleCause.HOST if lacks_host_ops(trace) else IdleCause.PYTHON
    name[without_op] = labels.around(active.track[without_op], time_ns[without_op])
    outside = np.flatnonzero(np.isin(cause, (IdleCause.DATA_LOADER, IdleCause.COMPILING)))
    _, line[outside] = labels.on_host(active.take(outside))
    outside = np.flatnonzero(np.isin(cause, (IdleCause.DATA_LOADER, IdleCause.COMPILING, IdleCause.PYTHON)))
    line[outside] = np.where(line[outside] > 0, line[outside], labels.between_ops(time_ns[outside]))
    waits = np.flatnonzero(partition.call[piece] >= 0)
    name[waits], line[waits] = labels.of_syncs(partition.call[piece[waits]])
    queued = np.flatnonzero(cause == IdleCause.LAUNCH_QUEUE)
    queued = queued[device_work(trace).linked[partition.owner[piece[queued]]]]
    name[queued], line[queued] = labels.of_launches(device_work(trace).call[partition.owner[piece[queued]]])
    spins = np.flatnonzero(cause == IdleCause.SPIN_WAIT)
    name[spins], line[spins] = labels.of_kernels(partition.owner[piece[spins]])
    step = count_before(steps(trace).window[:, 0], time_ns)
    begins = np.r_[True, (parts[1:, 0] != parts[:-1, 1]) | (step[1:] != step[:-1])][: len(parts)]
    gap = np.cumsum(begins, dtype=np.int32)
    return Idleness(tuple(labels.texts), parts, category, cause, partition.phase[piece], name, line, gap)


def _idle_pieces(trace: Trace) -> NDArray[np.int64]:
    """Return the indices of the partition's idle pieces in counted steps."""
    categories = (
        (*IDLE, TimeCategory.SPIN_WAIT)
        if len(device_work(trace))
        else (TimeCategory.DATALOAD_WAIT, TimeCategory.PYTHON, TimeCategory.ONCE)
    )
    return np.flatnonzero(activity(trace).among(*categories) & in_counted_steps(trace))


def _cut_at_host_changes(
    trace: Trace, partition: Activity, idle: NDArray[np.int64]
) -> tuple[Spans, NDArray[np.int64], ActiveThread]:
    """Return (parts, the piece of the partition that each belongs to, the thread that explains it).

    Pieces are cut where an op, an annotation, a Python frame, a pause or an embedded line begins or ends.
    """
    boundaries = sorted_unique(
        host_boundaries(trace), host_pauses(trace).ravel(), lines_between_ops(trace).parts.ravel()
    )
    parts, source = cut(partition.parts.take(idle, axis=0), boundaries)
    piece = idle[source]
    main, work = main_track(trace), device_work(trace)
    active = active_thread(trace, parts[:, 0].copy())
    if len(work):
        owner = partition.owner[piece]
        launching = np.where((owner >= 0) & work.linked[owner], tracks(trace)[work.call[owner]], main)
        active.assign(trace, launching, np.flatnonzero(launching != main))
    return parts, piece, active


@frozen
class LostOnce:
    """Time of one kind, ns in all counted steps, of which `name` takes the longest part.

    `name` is a call or an op: of one that takes nearly all of the ops around it the outermost; of a pause what follows;
    `before cuLaunchKernel` where the host prepares that launch in no op.
    """

    kind: OnceKind
    name: str
    ns: int


def lost_once(trace: Trace) -> list[LostOnce]:
    """Return the time by kind, the longest first."""
    done, times = activity(trace), once(trace)
    pieces = np.flatnonzero(in_counted_steps(trace) & (done.category == TimeCategory.ONCE))
    index = span_index(times.parts, done.parts[pieces, 0])
    loads, calls = ends_of_loads(trace)
    in_loads = np.r_[calls, -1][span_index(loads, done.parts[pieces, 0])]
    kind = np.where(index >= 0, np.r_[times.kind, -1][index], OnceKind.KERNEL_LOADING)
    by_row = group([kind, np.where(index >= 0, np.r_[times.row, -1][index], in_loads)])
    ns = by_row.totals(done.ns[pieces])
    lost = []
    for of_kind in OnceKind:
        rows = np.flatnonzero((by_row.keys[:, 0] == of_kind) & (ns > 0))
        if len(rows):
            longest = int(by_row.keys[rows[ns[rows].argmax()], 1])
            lost.append(LostOnce(of_kind, _name(trace, of_kind, longest), int(ns[rows].sum())))
    return sorted(lost, key=lambda each: -each.ns)


def _name(trace: Trace, kind: OnceKind, row: int) -> str:
    """Return the name of a call or op: of a start or load that of the outermost op of which it is nearly all."""
    events = trace.events
    if row < 0:
        return ""
    if kind is OnceKind.FIRST_CALL and events.category[row] == Category.RUNTIME:
        return f"before {events.text(row)}"
    ops = host_ops(trace).get(int(tracks(trace)[row]))
    if ops is None or kind not in (OnceKind.DEVICE_START, OnceKind.KERNEL_LOADING):
        return events.text(row)
    around = ops.rows[(ops.start <= events.ts[row]) & (ops.end >= events.end[row])]
    around = around[NEARLY_ALL * events.dur[around] <= events.dur[row]]
    return events.text(int(around[events.dur[around].argmax()])) if len(around) else events.text(row)
