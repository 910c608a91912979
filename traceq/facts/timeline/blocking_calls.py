"""Calls that make the host wait: synchronising copies, stream, event and device waits, allocations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import DeviceWork, device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import steps
from traceq.intervals import contains, empty, sorted_unique, spans
from traceq.model import Category, Events, Trace

__all__ = ["BlockingCalls", "SyncKind", "blocking_calls"]

TOLERANCE_NS = 50_000
"""Host and device clocks disagree by up to 30 us; a synchronize that belongs to a copy follows within 11 us."""


class SyncKind(IntEnum):
    """What a blocking call is; the names are those of the JSON."""

    DTOH = 0
    HTOD = 1
    STREAM = 2
    EVENT = 3
    DEVICE = 4
    ALLOC = 5


_COPY = re.compile("memcpy", re.IGNORECASE)
_ASYNC = re.compile("async", re.IGNORECASE)
_TO_HOST, _TO_DEVICE = re.compile("Memcpy DtoH|DeviceToHost"), re.compile("Memcpy HtoD|HostToDevice")
_PAGEABLE = re.compile("pageable", re.IGNORECASE)
_WAITS = {
    SyncKind.STREAM: re.compile(r"StreamSynchronize"),
    SyncKind.EVENT: re.compile(r"EventSynchronize"),
    SyncKind.DEVICE: re.compile(r"(Device|Ctx|Context)Synchronize"),
    SyncKind.ALLOC: re.compile(
        r"^(cuda|hip)(Malloc(Host|Managed|Pitch|3D)?|Free(Host)?|HostAlloc|HostMalloc|HostFree|ExtMallocWithFlags)$"
        r"|^cuMem(Alloc|AllocHost|AllocManaged|HostAlloc|Free|FreeHost)(_v2)?$"
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class BlockingCalls:
    """S calls by (start, row): a merged copy and synchronize is one.

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
        """bool[S]: allocations, which wait for nothing that could be named."""
        alloc: NDArray[np.bool_] = self.kind == SyncKind.ALLOC
        return alloc


@once_per_trace
def blocking_calls(trace: Trace) -> BlockingCalls:
    """All blocking calls of a trace but the profiler's own last device synchronize."""
    events, work = trace.events, device_work(trace)
    calls = events.rows(Category.RUNTIME)
    calls = calls[np.lexsort((calls, events.ts[calls], tracks(trace)[calls]))] if len(work) else calls[:0]
    copy = _copy_of_call(trace, work, calls)
    kind = _wait_kinds(trace, calls)
    follows = _synchronize_that_follows(trace, calls, kind, copy)
    copy_kind = _copy_kinds(trace, work, copy)
    copies = (copy_kind >= 0) & ((follows >= 0) | _waits_alone(trace, work, calls, copy))
    last = np.where(follows >= 0, follows, np.arange(len(calls)))
    kind[copies] = copy_kind[copies]
    kind[follows[copies & (follows >= 0)]] = -1
    kept = np.flatnonzero((kind >= 0) & ~_is_profilers_own(trace, work, calls, kind))
    kept = kept[np.lexsort((calls[kept], events.ts[calls[kept]]))]
    end = events.end[calls[np.where(copies, last, np.arange(len(calls)))[kept]]]
    start = events.ts[calls[kept]]
    copy = np.where(copies, copy, -1)[kept]
    return BlockingCalls(
        rows=calls[kept],
        kind=kind[kept],
        start=start,
        end=end,
        track=tracks(trace)[calls[kept]],
        awaited=_awaited(trace, work, calls[kept], start, end, copy),
        copy=copy,
    )


def _copy_of_call(trace: Trace, work: DeviceWork, calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index into DeviceWork of the copy each call launched, -1 for calls that are no copy or launched none."""
    copies = np.flatnonzero(work.linked & (trace.events.category[work.rows] == Category.MEMCPY))[::-1]
    of_row = np.full(len(trace.events), -1)
    of_row[work.call[copies]] = copies
    return np.where(matching(trace.events, calls, _COPY), of_row[calls], -1)


def _wait_kinds(trace: Trace, calls: NDArray[np.int64]) -> NDArray[np.int8]:
    kind = np.full(len(calls), -1, np.int8)
    for code, pattern in _WAITS.items():
        kind[matching(trace.events, calls, pattern)] = code
    return kind


def _copy_kinds(trace: Trace, work: DeviceWork, copy: NDArray[np.int64]) -> NDArray[np.int8]:
    """DTOH or HTOD by the name of the copy; -1 for others."""
    kind, copies = np.full(len(copy), -1, np.int8), np.flatnonzero(copy >= 0)
    rows = work.rows[copy[copies]]
    kind[copies[matching(trace.events, rows, _TO_DEVICE)]] = SyncKind.HTOD
    kind[copies[matching(trace.events, rows, _TO_HOST)]] = SyncKind.DTOH
    return kind


def _synchronize_that_follows(
    trace: Trace, calls: NDArray[np.int64], kind: NDArray[np.int8], copy: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Position of the stream synchronize that is the thread's very next call after a copy, -1 where it is not."""
    events, track = trace.events, tracks(trace)[calls]
    after = np.minimum(np.arange(len(calls)) + 1, len(calls) - 1)
    soon = events.ts[calls[after]] - events.end[calls] <= TOLERANCE_NS
    found = (copy >= 0) & (kind[after] == SyncKind.STREAM) & (track[after] == track) & soon
    return np.where(found & (_copy_kinds(trace, device_work(trace), copy) >= 0), after, -1)


def _waits_alone(
    trace: Trace, work: DeviceWork, calls: NDArray[np.int64], copy: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Copies that wait without a synchronize: by a synchronous API, or pageable and over when the call returned.

    A copy that begins after its call has returned was staged, and nobody waited for it.
    """
    events, waits, copies = trace.events, np.zeros(len(calls), np.bool_), np.flatnonzero(copy >= 0)
    calls, copy = calls[copies], copy[copies]
    returned = events.ts[calls] + events.dur[calls]
    over = (work.start[copy] < returned) & (work.end[copy] <= returned + TOLERANCE_NS)
    synchronous = ~matching(events, calls, _ASYNC)
    waits[copies] = synchronous | (over & matching(events, work.rows[copy], _PAGEABLE))
    return waits


def _is_profilers_own(
    trace: Trace, work: DeviceWork, calls: NDArray[np.int64], kind: NDArray[np.int8]
) -> NDArray[np.bool_]:
    """The trace's last device synchronize, if no launch follows it and no step holds it: the profiler waits as it
    stops.
    """
    own = np.zeros(len(calls), np.bool_)
    waits = np.flatnonzero(kind == SyncKind.DEVICE)
    if len(waits):
        last = waits[np.argmax(trace.events.ts[calls[waits]])]
        launched = trace.events.ts[work.call[work.linked]]
        at = trace.events.ts[calls[last : last + 1]]
        host = steps(trace).host if steps(trace).marked else empty()
        own[last] = not (launched > at).any() and not contains(spans(host[:, 0], host[:, 1]), at).any()
    return own


def _awaited(
    trace: Trace,
    work: DeviceWork,
    calls: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    copy: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Latest end of what each call waits for, <= its end: its copy, its stream, what its event was recorded behind, its
    device, else (an event or a stream that the trace does not name) anything that had ended by then.

    Where nothing had ended, its start.
    """
    if len(work) == 0:
        return start.copy()
    ends = np.sort(work.end)
    done = np.searchsorted(ends, end, "right")
    awaited = np.where(done > 0, ends[done - 1], start)
    recorded_on, recorded = _event_of_call(trace, calls)
    stream = np.where(recorded_on >= 0, recorded_on, _stream_of_call(trace, calls))
    until = np.where(recorded_on >= 0, recorded, start)
    for number in sorted_unique(stream[stream >= 0]).tolist():
        mine = np.flatnonzero(stream == number)
        awaited[mine] = _latest_end(trace, work, work.stream == number, until[mine], end[mine])
    whole_device = np.flatnonzero(matching(trace.events, calls, _WAITS[SyncKind.DEVICE]))
    everything = np.ones(len(work), np.bool_)
    awaited[whole_device] = _latest_end(trace, work, everything, start[whole_device], end[whole_device])
    awaited = np.where(copy >= 0, work.end[copy], awaited)
    return np.minimum(awaited, end)


def _stream_of_call(trace: Trace, calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """Stream, as DeviceWork numbers it, that a `cuda_sync` row of the same correlation names; -1 where none does."""
    events = trace.events
    rows = events.rows(Category.SYNC)
    rows = rows[(events.correlation[rows] > 0) & (events.stream[rows] >= 0)]
    rows = rows[np.argsort(events.correlation[rows], kind="stable")]
    if len(rows) == 0:
        return np.full(len(calls), -1)
    ids = events.correlation[rows]
    at = np.minimum(np.searchsorted(ids, events.correlation[calls]), len(ids) - 1)
    same = (events.correlation[calls] > 0) & (ids[at] == events.correlation[calls])
    waits_on_stream = matching(events, calls, _WAITS[SyncKind.STREAM])
    device = np.maximum(events.device[rows[at]], 0).astype(np.int64)
    return np.where(same & waits_on_stream, device * 2**32 + events.stream[rows[at]], -1)


def _event_of_call(trace: Trace, calls: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(stream, as DeviceWork numbers it, on which the event was recorded that a call waits for; ns, when), -1 where no
    `cuda_sync` row of the same correlation tells, or the recording call is not in the trace.
    """
    events, waits = trace.events, trace.events.waits
    if len(waits.row) == 0:
        return np.full(len(calls), -1), np.full(len(calls), -1)
    device = np.maximum(events.device[waits.row], 0).astype(np.int64)
    records = _rows_of(events, events.rows(Category.RUNTIME), waits.record)
    known = records >= 0
    of_call = _positions(events.correlation[waits.row[known]], events.correlation[calls])
    of_call[~matching(events, calls, _WAITS[SyncKind.EVENT])] = -1
    stream = np.r_[(device * 2**32 + waits.stream)[known], -1]
    recorded = np.r_[events.ts[records[known]], -1]
    return stream[of_call], recorded[of_call]


def _rows_of(events: Events, rows: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of some rows the first with each correlation id, -1 where none has it."""
    at = _positions(events.correlation[rows], wanted)
    return np.where(at >= 0, rows[at], -1) if len(rows) else at


def _positions(ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Position of the first of each wanted id among some ids, -1 where it is absent or no id."""
    order = np.argsort(ids, kind="stable")
    if len(ids) == 0:
        return np.full(len(wanted), -1)
    at = order[np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)]
    return np.where((wanted > 0) & (ids[at] == wanted), at, -1)


def _latest_end(
    trace: Trace,
    work: DeviceWork,
    chosen: NDArray[np.bool_],
    start: NDArray[np.int64],
    returned: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the latest end of the chosen work that was launched before each start, the start itself without any.

    Work whose launch the trace does not hold was launched before the trace began: what of it had ended when the call
    returned was awaited.
    """
    linked, unlinked = np.flatnonzero(chosen & work.linked), np.flatnonzero(chosen & ~work.linked)
    launched = trace.events.ts[work.call[linked]]
    order = np.argsort(launched, kind="stable")
    reach = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(work.end[linked][order])]
    ended = np.r_[np.iinfo(np.int64).min, np.sort(work.end[unlinked])]
    latest = np.maximum(
        reach[np.searchsorted(launched[order], start, "left")], ended[np.searchsorted(ended[1:], returned, "right")]
    )
    return np.where(latest > np.iinfo(np.int64).min, latest, start)
