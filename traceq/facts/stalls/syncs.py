"""Syncs: each wait of the host for the device, its duration, and the device idle time that follows."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.blocking_copies_and_syncs import BlockingCalls, SyncKind, blocking_calls
from traceq.facts.timeline.call_sites import Origins, origins
from traceq.facts.timeline.data_loading import DATALOAD_WAIT, LOADER, loader_iterations
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import extent, main_track
from traceq.facts.timeline.time_partition import HOST_CAUSED, IDLE, activity, unrecorded
from traceq.frozen import frozen
from traceq.grouping import by_value
from traceq.intervals import contains, measure_within, spans
from traceq.model import Category, Trace

SYNC_KINDS = ("dtoh", "htod", "stream", "event", "device", "alloc", "scalar")
"""Names of the kinds of sync, in the order of `Syncs.kind`."""

_SCALAR = re.compile(r"^aten::_local_scalar_dense$")
_READS_ON_CPU_ALONE = re.compile(r"^aten::(std|var|_assert_async)$")
"""Ops that read a scalar to compute or to check on a CPU, and on a GPU do so on the device."""
_DDP_SEARCH, _DDP_COPIES = (
    re.compile(rf"^torch\.distributed\.ddp\.reducer::{name}$")
    for name in ("search_unused_parameters", "copy_bucket_to_grad")
)
"""DDP that searches unused parameters reads its map of them, which is on the host, before each copy."""
_OPTIMIZER, _LOADER, _LOADING = map(re.compile, (r"^Optimizer\.step#", f"^{LOADER}", f"^{DATALOAD_WAIT}$"))


@frozen(eq=False)
class Syncs:
    """S syncs by start.

    `rows` int64[S] into Events; `kind` int8[S] into SYNC_KINDS; `phase` int64[S]; `origin` of S calls; `bytes` int64[S]
    copied; `start` int64[S] ns; `blocked`, `wait`, `starved`, `cost` int64[S] ns: the call's duration, the part of it
    until the awaited work ended, the device idle time after that, and the part of this that the sync causes; `since`
    int64[S] ns, when the wait was over and the device had no more work.
    """

    rows: NDArray[np.int64]
    kind: NDArray[np.int8]
    phase: NDArray[np.int64]
    origin: Origins
    bytes: NDArray[np.int64]
    start: NDArray[np.int64]
    blocked: NDArray[np.int64]
    wait: NDArray[np.int64]
    starved: NDArray[np.int64]
    cost: NDArray[np.int64]
    since: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


@once_per_trace
def syncs(trace: Trace) -> Syncs:
    """Return all syncs; without a device the `aten::_local_scalar_dense` calls that would sync, at no cost."""
    return _on_device(trace) if len(device_work(trace)) else _on_cpu(trace)


@once_per_trace
def blocked_on_record(trace: Trace) -> NDArray[np.int64]:
    """Return int64[S] ns: for how long each sync blocks, without its waits for unrecorded work."""
    waits = syncs(trace)
    return waits.blocked - measure_within(unrecorded(trace), waits.start, waits.start + waits.blocked)


def _on_device(trace: Trace) -> Syncs:
    work, calls = device_work(trace), blocking_calls(trace)
    since = np.where(calls.is_alloc, calls.start, np.maximum(calls.start, calls.awaited))
    starved, cost = _starved(trace, calls, since)
    copied = trace.events.bytes[work.rows[calls.copy]]
    return Syncs(
        rows=calls.rows,
        kind=calls.kind,
        phase=phases(trace).phase_at(calls.track, calls.start),
        origin=origins(trace, calls.track, calls.start, calls.end, calls.rows, calls.copy >= 0),
        bytes=np.where(calls.copy >= 0, np.maximum(copied, 0), 0),
        start=calls.start,
        blocked=calls.end - calls.start,
        wait=np.where(calls.is_alloc, 0, np.maximum(calls.awaited - calls.start, 0)),
        starved=starved,
        cost=cost,
        since=since,
    )


def _on_cpu(trace: Trace) -> Syncs:
    events, row_track = trace.events, tracks(trace)
    rows, op = _scalar_reads(trace)
    zeros = np.zeros(len(rows), np.int64)
    return Syncs(
        rows=rows,
        kind=np.full(len(rows), SYNC_KINDS.index("scalar"), np.int8),
        phase=phases(trace).phase_at(row_track[rows], events.ts[rows]),
        origin=origins(trace, row_track[rows], events.ts[rows], events.end[rows], innermost=op),
        bytes=zeros,
        start=events.ts[rows],
        blocked=events.dur[rows],
        wait=zeros,
        starved=zeros,
        cost=zeros,
        since=events.end[rows],
    )


def _scalar_reads(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (row, index into the ops of its thread) of reads of a scalar that would sync on a GPU, by start.

    Not of tensors that are on the host anyway (an optimizer reads its step counters, a loader samples and indices, DDP
    which parameters were used), and not inside ops that read one on a CPU alone.
    """
    events, row_track = trace.events, tracks(trace)
    rows = events.rows(Category.CPU_OP)
    rows = rows[matching(events, rows, _SCALAR)]
    rows = rows[np.argsort(events.ts[rows], kind="stable")]
    marks = events.rows(Category.ANNOTATION, Category.CPU_OP)
    searches = bool(matching(events, marks, _DDP_SEARCH).any())
    loading = marks[matching(events, marks, _LOADER)]
    if not len(loading):  # a loader that torch does not mark; else its phase may also copy batches, and check them
        loading = marks[matching(events, marks, _LOADING)]
    marks = np.concatenate([marks[matching(events, marks, _OPTIMIZER)], loading])
    is_local = (row_track[rows] == main_track(trace)) & contains(loader_iterations(trace).made, events.ts[rows])
    op = np.full(len(rows), -1)  # by row: in traces of whole microseconds an op may take no time
    of_thread = dict(by_value(row_track[marks]))
    for track, on_track in by_value(row_track[rows]):
        ops, mark = host_ops(trace)[track], marks[of_thread.get(track, marks[:0])]
        op[on_track] = ops.index_of(rows[on_track])
        is_local[on_track] |= contains(spans(events.ts[mark], events.end[mark]), events.ts[rows[on_track]])
        is_local[on_track] |= ops.first_enclosing(op[on_track], matching(events, ops.rows, _READS_ON_CPU_ALONE)) >= 0
        if searches:
            is_copy = np.r_[matching(events, ops.rows, _DDP_COPIES), False]
            is_local[on_track] |= is_copy[ops.next_outside()[op[on_track]]]
    return rows[~is_local], op[~is_local]


def _starved(
    trace: Trace, calls: BlockingCalls, since: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (device idle ns from the end of the awaited work to the next start, the part that the sync causes).

    An allocation waits for no work: the idle time during the call counts.
    """
    partition = activity(trace)
    idle, host_caused = partition.when(*IDLE), partition.when(*HOST_CAUSED)
    idle_end = np.where(calls.is_alloc, calls.end, np.minimum(_next_start(trace, calls), _next_call(trace, calls)))
    starved = measure_within(idle, since, idle_end)
    return starved, np.minimum(calls.end - calls.start, measure_within(host_caused, since, idle_end))


def _next_start(trace: Trace, calls: BlockingCalls) -> NDArray[np.int64]:
    """Return int64[S] ns: first start of work launched after each call; the end of the trace if there is none."""
    work = device_work(trace)
    launched = trace.events.ts[work.call[work.linked]]
    order = np.argsort(launched, kind="stable")
    first = np.minimum.accumulate(work.start[work.linked][order][::-1])[::-1]
    first = np.r_[first, extent(trace)[1]]
    next_start: NDArray[np.int64] = first[np.searchsorted(launched[order], calls.end, "left")]
    return next_start


def _next_call(trace: Trace, calls: BlockingCalls) -> NDArray[np.int64]:
    """Return int64[S] ns: start of the thread's next blocking call; the end of the trace for the last."""
    after = np.full(len(calls), extent(trace)[1])
    order = np.lexsort((np.arange(len(calls)), calls.track))
    same_track = calls.track[order[1:]] == calls.track[order[:-1]]
    after[order[:-1][same_track]] = calls.start[order[1:][same_track]]
    return after


assert SYNC_KINDS[: len(SyncKind)] == tuple(kind.name.lower() for kind in SyncKind)
