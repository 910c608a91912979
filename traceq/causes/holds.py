"""Holds: calls in which the host may wait: for the device, the data loader, a place in the launch queue.

A call that loads a kernel may wait until the device is idle, too: with lazy loading, for all work launched before.
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#lazy-loading
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.copies import COPY_CALL, TO_DEVICE, TO_HOST
from traceq.facts.events.device_work import DeviceWork, device_work, session_gaps
from traceq.facts.events.kernel_loads import kernel_loading_calls
from traceq.facts.events.kernels import is_communication
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.timeline.active_thread import launching_threads, silent_spans
from traceq.facts.timeline.blocking_copies_and_syncs import DEVICE_SYNCHRONIZE, SyncKind, blocking_calls
from traceq.facts.timeline.steps import main_track
from traceq.frozen import frozen
from traceq.intervals import ascending, sorted_unique, span_index
from traceq.model import Category, Trace

_FREE = re.compile(r"Free")

_MIN_SILENCE_NS, _MAX_DELAY_NS = 1_000_000, 100_000
"""A silence of the host that is so long, and ends so soon after a collective, is a wait without a call."""

_MIN_OUTSTANDING, _MIN_BLOCKED_NS, _MIN_BLOCKED_CALLS = 900, 50_000, 20
"""A launch queue is full where this many launches are outstanding and this many calls take that long."""


class HoldKind(IntEnum):
    """Kind of a hold; the first ones are those of blocking calls."""

    DTOH = SyncKind.DTOH
    HTOD = SyncKind.HTOD
    STREAM = SyncKind.STREAM
    EVENT = SyncKind.EVENT
    DEVICE = SyncKind.DEVICE
    ALLOC = SyncKind.ALLOC
    LOADER = 6
    COPY = 7
    QUEUE = 8
    SILENT = 9
    THREAD = 10
    LOAD = 11


@frozen(eq=False)
class HostHolds:
    """H holds of a host, blocking calls first.

    `kind` int64[H] of HoldKind; `start`, `end` int64[H] ns; `row` int64[H] into Events, the call, -1 without one;
    `call` int64[H] into BlockingCalls, -1 for others. W edges: hold `wait` int64[W] waits for `work` int64[W] into
    DeviceWork.
    """

    kind: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    row: NDArray[np.int64]
    call: NDArray[np.int64]
    wait: NDArray[np.int64]
    work: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.kind)


def holds(trace: Trace, queue_length: int, *, for_replay: bool) -> HostHolds:
    """Return the holds of the host line; with a `queue_length` above 0 every launch may wait for a place in the queue.

    Besides blocking calls and loader waits: every other copy call and every device synchronize, the profiler's last one
    included. They block in one recording and not in another, and both need the same instants, as of calls that load a
    kernel, but `for_replay`, which leaves out what is once. There waits that leave no row are holds, such as those of
    torch's allocator before it frees: a guess that may differ between two recordings.
    """
    events, work = trace.events, device_work(trace)
    waits, blocking = host_waits(trace), blocking_calls(trace)
    is_call = waits.call >= 0
    row = np.where(is_call, np.r_[blocking.rows, -1][waits.call], -1)
    kind = np.where(is_call, np.r_[blocking.kind, 0][waits.call], HoldKind.LOADER).astype(np.int64)
    copies, copy_kind, copy_work = _other_copies(trace, work, row)
    synchronizes = _other_synchronizes(trace, row)
    loads = copies[:0] if for_replay else np.setdiff1d(kernel_loading_calls(trace), np.r_[row, copies])
    queued = _launches(trace, work, np.r_[row, copies, loads]) if queue_length else copies[:0]
    rows = np.r_[copies, synchronizes, loads, queued]
    first_copy, first_synchronize = len(row), len(row) + len(copies)
    frees = np.flatnonzero((kind == HoldKind.ALLOC) & ~np.isin(np.arange(len(row)), waits.wait, kind="table"))
    frees = frees[matching(events, row[frees], _FREE)]
    free_wait, free_work = _device_waits(trace, work, row[frees], must_have_ended=True)
    all_wait, all_work = _device_waits(trace, work, synchronizes, must_have_ended=False)
    load_wait, load_work = _waits_of_loads(trace, work, loads)
    has_awaited = copy_kind != HoldKind.COPY
    silent_start, silent_end, silent_work = _silent_waits(trace, work) if for_replay else (copies[:0],) * 3
    read_start, read_end, read_work = _waits_for_readers(trace, work)
    silent = np.repeat([int(HoldKind.SILENT), int(HoldKind.THREAD)], [len(silent_work), len(read_work)])
    without_call = np.full(len(rows) + len(silent), -1)
    by_kind = (synchronizes, HoldKind.DEVICE), (loads, HoldKind.LOAD), (queued, HoldKind.QUEUE)
    others = copy_kind, *(np.full(len(calls), int(of_kind)) for calls, of_kind in by_kind), silent
    first_silent = len(row) + len(rows)
    return HostHolds(
        kind=np.r_[kind, *others],
        start=np.r_[waits.start, events.ts[rows], silent_start, read_start],
        end=np.r_[waits.end, events.end[rows], silent_end, read_end],
        row=np.r_[row, rows, np.full(len(silent), -1)],
        call=np.r_[waits.call, without_call],
        wait=np.r_[
            waits.wait,
            first_copy + np.flatnonzero(has_awaited),
            frees[free_wait],
            first_synchronize + all_wait,
            first_synchronize + len(synchronizes) + load_wait,
            first_silent + np.arange(len(silent)),
        ],
        work=np.r_[waits.work, copy_work[has_awaited], free_work, all_work, load_work, silent_work, read_work],
    )


def launch_queue_length(trace: Trace) -> int:
    """Return how many launches were outstanding when launch calls blocked because the queue was full; 0 if none did."""
    _, outstanding = _blocked_launches(trace)
    return int(outstanding.max()) if len(outstanding) else 0


def waits_for_queue(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (rows of the launch calls that blocked because the queue was full, the work that ended last before each).

    That work left the queue: the call got its place.
    """
    work, (launched, _) = device_work(trace), _blocked_launches(trace)
    calls, by_end = sorted_unique(work.call[launched]), np.argsort(work.end, kind="stable")
    last = np.searchsorted(work.end[by_end], trace.events.end[calls], "right") - 1
    return calls[last >= 0], by_end[last[last >= 0]]


@once_per_trace
def _blocked_launches(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (work whose launch call blocked because the queue was full, how many launches were outstanding then)."""
    events, work = trace.events, device_work(trace)
    linked = np.flatnonzero(work.linked)
    linked = linked[np.argsort(events.ts[work.call[linked]], kind="stable")]
    early = work.before_window
    ends = ascending(np.r_[work.end[linked], work.end[early]])
    returned = events.end[work.call[linked]]
    begun = np.r_[np.iinfo(np.int64).min, session_gaps(trace)[:, 0]]  # early work was launched before its session
    of_session = np.searchsorted(session_gaps(trace)[:, 0], work.start[early], "right")
    num_early = np.searchsorted(begun[of_session], returned, "right")
    outstanding = num_early + np.arange(len(linked)) - np.searchsorted(ends, returned, "right")
    blocked = (events.dur[work.call[linked]] > _MIN_BLOCKED_NS) & (outstanding >= _MIN_OUTSTANDING)
    if len(sorted_unique(work.call[linked[blocked]])) < _MIN_BLOCKED_CALLS:
        return linked[:0], outstanding[:0]
    return linked[blocked], outstanding[blocked]


def _other_copies(
    trace: Trace, work: DeviceWork, held: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (rows of the copy calls that are no hold yet, their HoldKind, the copy that each launched)."""
    events, linked = trace.events, np.flatnonzero(work.linked)
    copied = linked[np.argsort(work.call[linked], kind="stable")]
    copied = copied[np.r_[np.ones(min(len(copied), 1), np.bool_), np.diff(work.call[copied]) > 0]]  # first of each call
    calls = work.call[copied]
    chosen = matching(events, calls, COPY_CALL) & ~np.isin(calls, held, kind="table") & (events.dur[calls] > 0)
    calls, copied = calls[chosen], copied[chosen]
    kind = np.full(len(calls), int(HoldKind.COPY))
    kind[matching(events, work.rows[copied], TO_DEVICE)] = HoldKind.HTOD
    kind[matching(events, work.rows[copied], TO_HOST)] = HoldKind.DTOH
    return calls, kind, copied


def _other_synchronizes(trace: Trace, held: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of the device synchronizes that are no hold yet."""
    rows = trace.events.rows(Category.RUNTIME)
    rows = rows[matching(trace.events, rows, DEVICE_SYNCHRONIZE)]
    return np.asarray(rows[~np.isin(rows, held, kind="table") & (trace.events.dur[rows] > 0)])


def _launches(trace: Trace, work: DeviceWork, held: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of the calls that launch kernels."""
    calls = sorted_unique(work.call[work.linked])
    calls = calls[~np.isin(calls, held, kind="table") & (trace.events.dur[calls] > 0)]
    return calls[~matching(trace.events, calls, COPY_CALL)]


def _silent_waits(trace: Trace, work: DeviceWork) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (start, end, awaited work) of waits without a row of their own.

    The main thread makes no call for at least 1 ms, a collective runs for nearly all of that time, and the next call
    follows its end.
    """
    events, comm = trace.events, np.flatnonzero(is_communication(trace))
    calls = events.rows(Category.RUNTIME)
    calls = calls[tracks(trace)[calls] == main_track(trace)]
    calls = calls[np.argsort(events.ts[calls], kind="stable")]
    if len(comm) == 0 or len(calls) == 0:
        return comm[:0], comm[:0], comm[:0]
    start, end = np.maximum.accumulate(events.end[calls])[:-1], events.ts[calls][1:]
    comm = comm[np.argsort(work.end[comm], kind="stable")]
    index = np.searchsorted(work.end[comm], end, "right") - 1
    awaited = comm[index]
    is_silence = (index >= 0) & (end - work.end[awaited] <= _MAX_DELAY_NS) & (end - start >= _MIN_SILENCE_NS)
    is_wait = is_silence & (work.start[awaited] - start <= (end - start) // 10)
    return start[is_wait], end[is_wait], awaited[is_wait]


def _waits_for_readers(
    trace: Trace, work: DeviceWork
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (start, end, awaited work) of waits for a thread that waits for copies to the host and launches nothing.

    Engines of inference read results on such a thread. A host that waits for it is silent when most of its waits end,
    each after a copy; one that does not is busy then.
    """
    blocking, threads = blocking_calls(trace), launching_threads(trace)
    reads = np.flatnonzero(~np.isin(blocking.track, threads) & ~blocking.is_alloc)
    copies = np.flatnonzero(matching(trace.events, work.rows, TO_HOST))
    if not len(reads) or not len(copies):
        return reads[:0], reads[:0], reads[:0]
    copies = copies[np.argsort(work.end[copies], kind="stable")]
    end, silent = blocking.end[reads], silent_spans(trace, threads)
    index, last = span_index(silent, end), np.searchsorted(work.end[copies], end, "right") - 1
    is_wait = (index >= 0) & (last >= 0) & (end - work.end[copies[last]] <= _MAX_DELAY_NS)
    _, thread, num = np.unique(blocking.track[reads], return_inverse=True, return_counts=True)
    is_wait &= (2 * np.bincount(thread, is_wait) > num)[thread]
    return np.maximum(silent[index, 0], blocking.start[reads])[is_wait], end[is_wait], copies[last[is_wait]]


def _waits_of_loads(
    trace: Trace, work: DeviceWork, loads: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (index of the call, work) as below: of calls that load, most of whose time is before the device is idle.

    Others load while the device works, or it had ended when they began.
    """
    call, on = _device_waits(trace, work, loads, must_have_ended=True)
    latest = trace.events.ts[loads]
    np.maximum.at(latest, call, work.end[on])
    waits = (2 * (latest - trace.events.ts[loads]) > trace.events.dur[loads])[call]
    return call[waits], on[waits]


def _device_waits(
    trace: Trace, work: DeviceWork, rows: NDArray[np.int64], *, must_have_ended: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (index of the call, work): the last work on every stream that each call waits for.

    With `must_have_ended` only calls at whose end all of that had ended: a free may return without waiting.
    """
    events, calls, awaited = trace.events, [], []
    launched = np.where(work.linked, events.ts[work.call], np.iinfo(np.int64).min) if len(work) else work.start
    for number in sorted_unique(work.stream).tolist():
        on_stream = np.flatnonzero(work.stream == number)
        order = np.argsort(launched[on_stream], kind="stable")
        last = np.maximum.accumulate(on_stream[order]) if len(order) else on_stream
        count = np.searchsorted(launched[on_stream][order], events.ts[rows], "left")
        calls.append(np.flatnonzero(count > 0))
        awaited.append(last[count[count > 0] - 1])
    call, on = (np.concatenate(parts) if parts else np.empty(0, np.int64) for parts in (calls, awaited))
    if must_have_ended and len(call):
        latest = np.full(len(rows), np.iinfo(np.int64).min)
        np.maximum.at(latest, call, work.end[on])
        ended = (latest <= events.end[rows] + 1000)[call]
        call, on = call[ended], on[ended]
    return call, on
