"""Calls that block the host: synchronous copies, stream, event and device synchronizes, allocations.

They are not among the stalls, which are computed from the partition of time: the partition needs to know what blocks.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.copies import COPY_CALL, PAGEABLE_COPY, TO_DEVICE, TO_HOST, WITHIN_DEVICE
from traceq.facts.events.device_work import DeviceWork, device_work, session_gaps
from traceq.facts.events.kernels import innermost_ops
from traceq.facts.events.name_patterns import matching, rows_named
from traceq.facts.events.nesting import tracks
from traceq.facts.events.starting_calls import library_loading_calls
from traceq.facts.events.stream_waits import recorded_events, synced_stream
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import ascending, contains, sorted_unique, spans
from traceq.model import Category, Trace

_FOLLOWS_NS = 50_000
"""A synchronize that belongs to a copy follows within 11 us, of a slow host a little later."""


class SyncKind(IntEnum):
    """Kind of a blocking call; the names are those of the JSON."""

    DTOH = 0
    HTOD = 1
    STREAM = 2
    EVENT = 3
    DEVICE = 4
    ALLOC = 5


DEVICE_SYNCHRONIZE = re.compile(r"(Device|Ctx|Context)Synchronize")
_QUERY = re.compile(r"EventQuery")
_ASYNC = re.compile("async", re.IGNORECASE)
_HIP_AND_WAIT = re.compile("hipMemcpyWithStream")
_COPY_OP = re.compile(r"^aten::copy_$")
_WAITS = {
    SyncKind.STREAM: re.compile(r"StreamSynchronize"),
    SyncKind.EVENT: re.compile(r"EventSynchronize"),
    SyncKind.DEVICE: DEVICE_SYNCHRONIZE,
    SyncKind.ALLOC: re.compile(
        r"^(cuda|hip)(Malloc(Host|Managed|Pitch|3D)?|Free(Host)?|HostAlloc|HostMalloc|HostFree|ExtMallocWithFlags)$"
        r"|^cuMem(Alloc|AllocHost|AllocManaged|HostAlloc|Free|FreeHost)(_v2)?$"
    ),
}


@frozen(eq=False)
class BlockingCalls:
    """S calls sorted by (start, row); a copy and the synchronize that completes it are one call.

    `rows` int64[S] into Events, the first call of a merged pair; `kind` int8[S]; `start`, `end` int64[S] ns; `track`
    int64[S]; `awaited` int64[S] ns, the latest end of the work waited for, <= end; `copy` int64[S] into DeviceWork, -1
    without one.
    """

    rows: NDArray[np.int64]
    kind: NDArray[np.int8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    track: NDArray[np.int64]
    awaited: NDArray[np.int64]
    copy: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_alloc(self) -> NDArray[np.bool_]:
        """bool[S]: allocations, which wait for no identifiable work."""
        return np.asarray(self.kind == SyncKind.ALLOC)


@once_per_trace
def blocking_calls(trace: Trace) -> BlockingCalls:
    """Return all blocking calls of a trace except the profiler's final device synchronize."""
    events, work = trace.events, device_work(trace)
    calls = events.rows(Category.RUNTIME)
    calls = calls[np.lexsort((calls, events.ts[calls], tracks(trace)[calls]))] if len(work) else calls[:0]
    copy = _launched_copies(trace, work, calls)
    kind = _synchronize_kinds(trace, calls)
    copy_kind = _copy_kinds(trace, work, calls, copy)
    follower = _following_synchronize(trace, calls, kind, copy_kind)
    blocks = (copy_kind >= 0) & ((follower >= 0) | _blocks_alone(trace, work, calls, copy))
    merged = blocks & (follower >= 0)
    kind[blocks] = copy_kind[blocks]
    kind[follower[merged]] = -1
    last = np.where(merged, follower, np.arange(len(calls)))
    index = np.flatnonzero((kind >= 0) & ~_is_profilers(trace, work, calls, kind))
    index = index[np.lexsort((calls[index], events.ts[calls[index]]))]
    rows, copy = calls[index], np.where(blocks, copy, -1)[index]
    start, end = events.ts[rows], events.end[calls[last[index]]]
    return BlockingCalls(
        rows=rows,
        kind=kind[index],
        start=start,
        end=end,
        track=tracks(trace)[rows],
        awaited=_awaited_ends(trace, work, rows, start, end, copy),
        copy=copy,
    )


def _launched_copies(trace: Trace, work: DeviceWork, calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index into DeviceWork of the copy that each copy call launched; -1 for other calls and without one."""
    copies = np.flatnonzero(work.linked & (trace.events.category[work.rows] == Category.MEMCPY))[::-1]
    copy_of_row = np.full(len(trace.events), -1)
    copy_of_row[work.call[copies]] = copies
    return np.where(matching(trace.events, calls, COPY_CALL), copy_of_row[calls], -1)


def _synchronize_kinds(trace: Trace, calls: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return the kind of each call that is a synchronize or an allocation by its name; -1 for others.

    A free that loads a library is host time, of a cold start.
    """
    kind = np.full(len(calls), -1, np.int8)
    for code, pattern in _WAITS.items():
        kind[matching(trace.events, calls, pattern)] = code
    kind[np.isin(calls, library_loading_calls(trace))] = -1
    return kind


def _copy_kinds(trace: Trace, work: DeviceWork, calls: NDArray[np.int64], copy: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return DTOH or HTOD by the name of each copy (an index into DeviceWork); -1 for others.

    ROCm calls a copy to pinned memory one within the device. Where the call is synchronous it is none: ops of torch
    make it to read a value, but for `aten::copy_`, which may write one.
    """
    kind, copies = np.full(len(copy), -1, np.int8), np.flatnonzero(copy >= 0)
    rows = work.rows[copy[copies]]
    kind[copies[matching(trace.events, rows, TO_DEVICE)]] = SyncKind.HTOD
    kind[copies[matching(trace.events, rows, TO_HOST)]] = SyncKind.DTOH
    pinned = copies[matching(trace.events, rows, WITHIN_DEVICE) & matching(trace.events, calls[copies], _HIP_AND_WAIT)]
    kind[pinned[_reads_value(trace, calls[pinned])]] = SyncKind.DTOH
    return kind


def _reads_value(trace: Trace, calls: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which calls are made by an op other than a copy: bool[calls]."""
    op = innermost_ops(trace, calls)
    return (op >= 0) & ~matching(trace.events, op, _COPY_OP)


def _following_synchronize(
    trace: Trace, calls: NDArray[np.int64], kind: NDArray[np.int8], copy_kind: NDArray[np.int8]
) -> NDArray[np.int64]:
    """Return the index of the stream synchronize that is the thread's very next call after each copy, else -1.

    It belongs to the copy if the same op makes it, or if it follows at once. Queries of events, by which torch finds
    out which of its pinned memory is free, do not count.
    """
    events, track, op = trace.events, tracks(trace)[calls], innermost_ops(trace, calls)
    counts = np.flatnonzero(~matching(events, calls, _QUERY))
    after = np.r_[counts, len(calls) - 1][np.searchsorted(counts, np.arange(len(calls)), "right")]
    belongs = events.ts[calls[after]] - events.end[calls] <= _FOLLOWS_NS
    belongs |= (op >= 0) & (op[after] == op)
    follows = (copy_kind >= 0) & (kind[after] == SyncKind.STREAM) & (track[after] == track) & belongs
    return np.where(follows, after, -1)


def _blocks_alone(
    trace: Trace, work: DeviceWork, calls: NDArray[np.int64], copy: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which copies block without a synchronize: bool[calls].

    Those by a synchronous API, and pageable ones during whose call the copy begins, if the call lasts half as long as
    the copy. A copy that begins after its call has returned was staged, and blocked no thread. Ends are not compared:
    the call returns when the last part is staged, which the device may still copy for a while.
    """
    events, blocks, copies = trace.events, np.zeros(len(calls), np.bool_), np.flatnonzero(copy >= 0)
    calls, copy = calls[copies], copy[copies]
    held = work.start[copy] < events.ts[calls] + events.dur[calls]
    held &= 2 * events.dur[calls] >= work.end[copy] - work.start[copy]
    synchronous = ~matching(events, calls, _ASYNC)
    blocks[copies] = synchronous | (held & matching(events, work.rows[copy], PAGEABLE_COPY))
    return blocks


def _is_profilers(
    trace: Trace, work: DeviceWork, calls: NDArray[np.int64], kind: NDArray[np.int8]
) -> NDArray[np.bool_]:
    """Return which calls are the device synchronize of a stopping profiler: bool[calls], at most one of a session.

    It is the session's last device synchronize, if no launch follows it there and it is outside all steps: torch waits
    for the device before it stops to record, so one of the job's own there would be the last but one. None where the
    frames of Python have told which it is.
    https://github.com/pytorch/pytorch/blob/v2.4.0/torch/autograd/profiler.py (`profile.__exit__`)
    """
    is_profilers, resumed = np.zeros(len(calls), np.bool_), session_gaps(trace)[:, 1]
    of_frames = rows_named(trace.events, DEVICE_SYNCHRONIZE, Category.PROFILER)
    waits = np.flatnonzero(kind == SyncKind.DEVICE)
    waits = waits[np.argsort(trace.events.ts[calls[waits]], kind="stable")]
    start, launched = trace.events.ts[calls[waits]], ascending(trace.events.ts[work.call[work.linked]])
    session = np.searchsorted(resumed, start, "right")
    until = np.r_[resumed, np.iinfo(np.int64).max][session]
    is_last = np.r_[session[1:] != session[:-1], np.ones(min(len(session), 1), np.bool_)]
    followed = np.searchsorted(launched, until, "left") > np.searchsorted(launched, start, "right")
    in_steps = steps(trace).marked & contains(spans(*steps(trace).host.T), start)
    is_known = np.isin(session, np.searchsorted(resumed, trace.events.ts[of_frames], "right"))
    is_profilers[waits] = is_last & ~followed & ~in_steps & ~is_known
    return is_profilers


def _awaited_ends(
    trace: Trace,
    work: DeviceWork,
    calls: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    copy: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the latest end, up to the end of each call, of the work that it waits for: int64[calls] ns.

    That work is its copy, its stream, what its event was recorded after, or its device; else (an event or a stream that
    the trace does not name) any work. If nothing had ended by then, its start.
    """
    if len(work) == 0:
        return start.copy()
    ends = ascending(work.end)
    num_done = np.searchsorted(ends, end, "right")
    awaited = np.where(num_done > 0, ends[num_done - 1], start)
    event_stream, recorded = recorded_events(trace, calls)
    event_stream[~matching(trace.events, calls, _WAITS[SyncKind.EVENT])] = -1
    waits_on_stream = matching(trace.events, calls, _WAITS[SyncKind.STREAM])
    stream = np.where(waits_on_stream, synced_stream(trace, calls), event_stream)
    until = np.where(event_stream >= 0, recorded, start)
    for number in sorted_unique(stream[stream >= 0]).tolist():
        on_stream = np.flatnonzero(stream == number)
        awaited[on_stream] = _latest_end(trace, work, work.stream == number, until[on_stream], end[on_stream])
    whole_device = np.flatnonzero(matching(trace.events, calls, _WAITS[SyncKind.DEVICE]))
    everything = np.ones(len(work), np.bool_)
    awaited[whole_device] = _latest_end(trace, work, everything, start[whole_device], end[whole_device])
    awaited = np.where(copy >= 0, work.end[copy], awaited)
    return np.minimum(awaited, end)


def _latest_end(
    trace: Trace,
    work: DeviceWork,
    selected: NDArray[np.bool_],
    start: NDArray[np.int64],
    returned: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the latest end of the selected work that was launched before each start, the start itself without any.

    Work whose launch the trace does not hold was launched before the trace began: what of it had ended when the call
    returned was awaited.
    """
    linked, unlinked = np.flatnonzero(selected & work.linked), np.flatnonzero(selected & ~work.linked)
    launched = trace.events.ts[work.call[linked]]
    order = np.argsort(launched, kind="stable")
    reach = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(work.end[linked][order])]
    ended = np.r_[np.iinfo(np.int64).min, ascending(work.end[unlinked])]
    latest = np.maximum(
        reach[np.searchsorted(launched[order], start, "left")], ended[np.searchsorted(ended[1:], returned, "right")]
    )
    return np.where(latest > np.iinfo(np.int64).min, latest, start)
