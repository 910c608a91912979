"""What the machine does at every instant of a trace: one category, one phase, one owner each.

The categories and their priorities are those of docs/method.md, "Exact partition". All boundaries of everything that
matters are put on one line; between two neighbours nothing changes, so each piece is classified by its start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import DeviceWork, device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.blocking_calls import BlockingCalls, blocking_calls
from traceq.facts.timeline.data_loading import loading
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import extent, main_track, steps
from traceq.intervals import Spans, contains, count_before, earliest_owner, sorted_unique, span_index, spans
from traceq.model import Category, Trace

__all__ = [
    "HOST_CAUSED",
    "IDLE",
    "Activity",
    "TimeCategory",
    "activity",
    "in_counted_steps",
    "is_communication",
    "ns_by_phase",
]


class TimeCategory(IntEnum):
    """What an instant is spent on; the names, in lower case, are those of the JSON."""

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


IDLE = (
    TimeCategory.SYNC_WAIT,
    TimeCategory.ALLOC_WAIT,
    TimeCategory.HOST_BOUND,
    TimeCategory.LAUNCH_LATENCY,
    TimeCategory.TAIL,
)
"""The device does nothing."""

HOST_CAUSED = (TimeCategory.SYNC_WAIT, TimeCategory.ALLOC_WAIT, TimeCategory.HOST_BOUND)
"""The device does nothing because the host has not yet launched the next piece of work."""

_COMMUNICATION = re.compile(
    r"nccl|rccl|cross_device_reduce"
    r"|^([^<(]|\(anonymous namespace\))*"  # not in the arguments of a template
    r"(\b|(?<=\d))"  # a mangled name has its length before it
    r"(one_shot_all_reduce|two_shot_all_reduce|multimem_|nvshmem|all_gather_\w*symm"
    r"|deep_ep::(\w+::)*(cached_)?(notify_)?(dispatch|combine)\b)",
    re.IGNORECASE,
)
_COMMUNICATION_ROW = re.compile(r"^(nccl|gloo|hccl|xccl):")
_COMMUNICATION_OP = re.compile(r"^(c10d::|record_param_comms$)")


@dataclass(frozen=True, eq=False)
class Activity:
    """M pieces of time, sorted, without a gap: `parts` int64[M, 2] ns; `doing` int8[M]; `phase` int64[M]; `owner`
    int64[M] into DeviceWork, what runs on the device or else comes next, -1 without one; `call` int64[M] into
    BlockingCalls during a sync_wait or alloc_wait, else -1.
    """

    parts: Spans
    doing: NDArray[np.int8]
    phase: NDArray[np.int64]
    owner: NDArray[np.int64]
    call: NDArray[np.int64]

    @cached_property
    def ns(self) -> NDArray[np.int64]:
        """int64[M]: length of each piece."""
        return self.parts[:, 1] - self.parts[:, 0]

    def among(self, *doing: TimeCategory) -> NDArray[np.bool_]:
        """bool[M]: the pieces of these categories."""
        mine = np.zeros(len(self.doing), np.bool_)
        for code in doing:
            mine |= self.doing == int(code)
        return mine

    def when(self, *doing: TimeCategory) -> Spans:
        """Instants of these categories."""
        mine = np.r_[False, self.among(*doing), False]
        opens, closes = np.flatnonzero(mine[1:] & ~mine[:-1]), np.flatnonzero(mine[:-1] & ~mine[1:])
        return np.column_stack([self.parts[opens, 0], self.parts[closes - 1, 1]])


@once_per_trace
def activity(trace: Trace) -> Activity:
    """The whole trace, from its first to its last instant; no piece straddles a step's window."""
    return _on_device(trace) if len(device_work(trace)) else _on_cpu(trace)


@once_per_trace
def in_counted_steps(trace: Trace) -> NDArray[np.bool_]:
    """bool[M]: pieces of the activity that lie in the window of a counted step."""
    found = steps(trace)
    return contains(found.window[found.counted], activity(trace).parts[:, 0])


@once_per_trace
def ns_by_phase(trace: Trace) -> NDArray[np.int64]:
    """int64[P, len(Doing)] ns: what the counted steps come to, by phase and category."""
    done, mine = activity(trace), np.flatnonzero(in_counted_steps(trace))
    ns = np.zeros((len(phases(trace).names), len(TimeCategory)), np.int64)
    np.add.at(ns.reshape(-1), done.phase[mine] * len(TimeCategory) + done.doing[mine], done.ns[mine])
    return ns


@once_per_trace
def is_communication(trace: Trace) -> NDArray[np.bool_]:
    """bool[D]: device work that moves data between ranks, by name or by what its kernel row says; never by stream."""
    work, events = device_work(trace), trace.events
    named = matching(events, work.rows, _COMMUNICATION)
    carries = events.messages.row[events.messages.name >= 0]
    talks: NDArray[np.bool_] = (events.category[work.rows] == Category.KERNEL) & (named | np.isin(work.rows, carries))
    return talks


def _line(trace: Trace, *boundaries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorted distinct boundaries from the trace's start to its end."""
    start, end = extent(trace)
    edges = sorted_unique(np.array([start, end]), steps(trace).window.ravel(), *boundaries)
    return edges[(edges >= start) & (edges <= end)]


def _on_device(trace: Trace) -> Activity:
    work, calls, timeline = device_work(trace), blocking_calls(trace), phases(trace).main
    is_kernel = trace.events.category[work.rows] == Category.KERNEL
    talks = is_communication(trace)
    running = [_owned(work, mine) for mine in (is_kernel & ~talks, talks, ~is_kernel)]
    returns = trace.events.end[work.call[work.linked]]
    edges = _line(trace, work.start, work.end, returns, calls.start, calls.end, timeline.parts.ravel())
    at = edges[:-1]
    doing, owner, call = np.full(len(at), -1, np.int8), np.full(len(at), -1), np.full(len(at), -1)
    for code, (parts, owners) in reversed(list(enumerate(running))):
        found = span_index(parts, at)
        inside = np.flatnonzero(found >= 0)
        doing[inside], owner[inside] = code, owners[found[inside]]
    phase, busy = phases(trace).at(at), np.flatnonzero(owner >= 0)
    phase[busy] = phases(trace).of_work[owner[busy]]
    idle = np.flatnonzero(owner < 0)
    doing[idle], owner[idle], call[idle] = _idle(trace, work, calls, at[idle])
    queued = np.flatnonzero(doing == TimeCategory.LAUNCH_LATENCY)
    phase[queued] = phases(trace).of_work[owner[queued]]
    return Activity(np.column_stack([at, edges[1:]]), doing, phase, owner, call)


def _owned(work: DeviceWork, mine: NDArray[np.bool_]) -> tuple[Spans, NDArray[np.int64]]:
    """Instants at which one of these ops runs, each to the one that started first."""
    chosen = np.flatnonzero(mine)
    parts, owners = earliest_owner(work.start[chosen], work.end[chosen])
    return parts, chosen[owners]


def _idle(
    trace: Trace, work: DeviceWork, calls: BlockingCalls, at: NDArray[np.int64]
) -> tuple[NDArray[np.int8], NDArray[np.int64], NDArray[np.int64]]:
    """(why the device idles at each instant, index into DeviceWork of the next launched op, into BlockingCalls of the
    call that waits); -1 without one.
    """
    linked = np.flatnonzero(work.linked)
    after = count_before(work.start[linked], at)
    comes = after < len(linked)
    upcoming = linked[np.minimum(after, len(linked) - 1)] if len(linked) else np.zeros(len(at), np.int64)
    launch = work.call[upcoming]
    returned = trace.events.end[launch]
    doing = np.where(at < returned, TimeCategory.HOST_BOUND, TimeCategory.LAUNCH_LATENCY).astype(np.int8)
    waits_in = np.full(len(at), -1)
    blocked = np.flatnonzero(contains(spans(calls.start, calls.end), at))
    begins, launched = work.start[upcoming[blocked]], launch[blocked]
    own, launching = np.full(len(blocked), main_track(trace)), tracks(trace)[launched]
    for track in (launching, own):
        call = _open_call(calls, track, at[blocked])
        holds_up = (trace.events.ts[launched] > calls.start[call]) & (calls.end[call] <= begins)
        waits = (call >= 0) & holds_up  # what was launched before the call would start no sooner without it
        doing[blocked[waits]] = np.where(calls.is_alloc[call[waits]], TimeCategory.ALLOC_WAIT, TimeCategory.SYNC_WAIT)
        waits_in[blocked[waits]] = call[waits]
    doing[~comes] = TimeCategory.TAIL
    return doing, np.where(comes, upcoming, -1), np.where(comes, waits_in, -1)


def _open_call(calls: BlockingCalls, track: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index of the blocking call that is open at each instant on the given thread, -1 where none is."""
    found = np.full(len(at), -1)
    for number in sorted_unique(calls.track).tolist():
        mine = np.flatnonzero(calls.track == number)
        parts, owners = earliest_owner(calls.start[mine], calls.end[mine])
        asked = np.flatnonzero(track == number)
        inside = span_index(parts, at[asked])
        found[asked[inside >= 0]] = mine[owners[inside[inside >= 0]]]
    return found


def _on_cpu(trace: Trace) -> Activity:
    """Without a device: the main thread computes, waits for other ranks or for data, or runs Python."""
    events, own = trace.events, main_track(trace)
    ops, marks = events.rows(Category.CPU_OP), events.rows(Category.ANNOTATION, Category.CPU_OP)
    computes = ops[~matching(events, ops, _COMMUNICATION_OP) & ~matching(events, ops, _COMMUNICATION_ROW)]
    computes = computes[tracks(trace)[computes] == own]
    talks = marks[matching(events, marks, _COMMUNICATION_ROW)]
    layers = [
        (TimeCategory.DATALOAD_WAIT, loading(trace)),
        (TimeCategory.EXPOSED_COMM, spans(events.ts[talks], events.end[talks])),
        (TimeCategory.CPU_COMPUTE, spans(events.ts[computes], events.end[computes])),
    ]
    edges = _line(trace, phases(trace).main.parts.ravel(), *(layer.ravel() for _, layer in layers))
    doing = np.full(len(edges) - 1, TimeCategory.PYTHON, np.int8)
    for code, layer in layers:
        doing[contains(layer, edges[:-1])] = code
    parts = np.column_stack([edges[:-1], edges[1:]])
    nothing = np.full(len(doing), -1)
    return Activity(parts, doing, phases(trace).at(edges[:-1]), nothing, nothing)
