"""Syncs: each wait of the host for the device, its duration, and the device idle time that follows."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import capture_spans, capturing_calls
from traceq.facts.events.kernels import innermost_ops
from traceq.facts.events.name_patterns import FREE_CALL, READS_SCALAR, matching, rows_named
from traceq.facts.events.nesting import host_ops, surroundings, tracks
from traceq.facts.events.starting_calls import first_device_use, library_loading_calls
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.blocking_copies_and_syncs import BlockingCalls, SyncKind, blocking_calls
from traceq.facts.timeline.call_sites import Origins, origins
from traceq.facts.timeline.data_loading import DATALOAD_WAIT, LOADER_RANGE, loader_iterations
from traceq.facts.timeline.once import FILLED, timing_ops
from traceq.facts.timeline.phases import OPTIMIZER_STEP, phases
from traceq.facts.timeline.steps import extent, main_track, steps
from traceq.facts.timeline.time_partition import HOST_CAUSED, IDLE, activity, unrecorded
from traceq.frozen import frozen
from traceq.grouping import by_value
from traceq.intervals import contains, measure_within, sorted_unique, span_index, spans
from traceq.model import Category, Trace

SYNC_KINDS = (*(kind.name.lower() for kind in SyncKind), "scalar")
"""Names of the kinds of sync, in the order of `Syncs.kind`."""

_READS_ON_CPU_ALONE = re.compile(r"^aten::(std|var|_assert_async)$")
"""Ops that read a scalar to compute or to check on a CPU, and on a GPU do so on the device."""
_DDP_SEARCH, _DDP_COPIES = (
    re.compile(rf"^torch\.distributed\.ddp\.reducer::{name}$")
    for name in ("search_unused_parameters", "copy_bucket_to_grad")
)
"""DDP that searches unused parameters reads its map of them, which is on the host, before each copy."""
_LOADING = re.compile(f"^{DATALOAD_WAIT}$")


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
    rows = events.by_start(rows_named(events, READS_SCALAR, Category.CPU_OP))
    marks = events.rows(Category.ANNOTATION, Category.CPU_OP)
    searches = bool(matching(events, marks, _DDP_SEARCH).any())
    loading = marks[matching(events, marks, LOADER_RANGE)]
    if not len(loading):  # a loader that torch does not mark; else its phase may also copy batches, and check them
        loading = marks[matching(events, marks, _LOADING)]
    marks = np.concatenate([marks[matching(events, marks, OPTIMIZER_STEP)], loading])
    is_local = (row_track[rows] == main_track(trace)) & contains(loader_iterations(trace).made, events.ts[rows])
    is_local |= surroundings(trace, rows).within_rows(marks)
    op = np.full(len(rows), -1)  # by row: in traces of whole microseconds an op may take no time
    for track, on_track in by_value(row_track[rows]):
        ops = host_ops(trace)[track]
        op[on_track] = ops.index_of(rows[on_track])
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


def host_ops_ns(trace: Trace, phase: str) -> float:
    """Return the time of the outermost ops of a phase on all threads, without what blocks in them, ns per step."""
    number, windows, taken_ns = _number(trace, phase), steps(trace).host[steps(trace).counted], 0
    for track, ops in host_ops(trace).items():
        start = ops.start[ops.parent < 0]
        is_here = (phases(trace).phase_at(np.full(len(start), track), start) == number) & contains(windows, start)
        taken_ns += int((ops.end[ops.parent < 0] - start)[is_here].sum())
    blocked = (syncs(trace).phase == number) & contains(windows, syncs(trace).start)
    return (taken_ns - int(syncs(trace).blocked[blocked].sum())) / len(windows)


def allocations_ns(trace: Trace, phase: str) -> float:
    """Return the time of the calls by which an allocator asks the driver, or gives back, in a phase, ns per step."""
    waits, windows = syncs(trace), steps(trace).host[steps(trace).counted]
    is_here = (waits.kind == SyncKind.ALLOC) & (waits.phase == _number(trace, phase)) & contains(windows, waits.start)
    return int(waits.blocked[is_here].sum()) / len(windows)


def _number(trace: Trace, phase: str) -> int:
    """Return the number of a phase, -1 if the trace does not have it."""
    names = phases(trace).names
    return names.index(phase) if phase in names else -1


_LEAST_FREE_NS = 20_000
"""Of a call that frees memory: it takes 130 us and more, a free of nothing, by which a thread asks for a context, 5."""


def is_in_graph_capture(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[S]: syncs inside an outermost op that captures a CUDA graph, before, while or after it does.

    Without such an op: in a capture, or before one on the same thread that launches no other work in between.
    """
    events, waits, row_track = trace.events, syncs(trace), tracks(trace)
    calls = capturing_calls(trace)
    inside = _is_in_or_before_capture(trace, calls)
    for track, ops in host_ops(trace).items() if len(calls) else ():
        index = ops.innermost_at(events.ts[calls[row_track[calls] == track]])
        top = ops.outermost()[index[index >= 0]]
        on_track = np.flatnonzero(row_track[waits.rows] == track)
        inside[on_track] |= contains(spans(ops.start[top], ops.end[top]), waits.start[on_track])
    return inside


def _is_in_or_before_capture(trace: Trace, begins: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[S]: syncs within the capture of a graph, or of its preparations: torch synchronizes and frees memory.

    `begins` are the rows of calls that begin a capture.
    """
    events, waits, work, row_track = trace.events, syncs(trace), device_work(trace), tracks(trace)
    captures = contains(capture_spans(trace), waits.start)
    for track in sorted_unique(row_track[begins]).tolist():
        on_track = np.flatnonzero(row_track[waits.rows] == track)
        begin_ns = np.sort(events.ts[begins[row_track[begins] == track]])
        launches = work.call[work.linked]
        launched_ns = np.sort(events.ts[launches[row_track[launches] == track]])
        start_ns = waits.start[on_track]
        following = np.searchsorted(begin_ns, start_ns)
        until_ns = np.append(begin_ns, extent(trace)[1])[following]
        num_launched = np.searchsorted(launched_ns, until_ns) - np.searchsorted(launched_ns, start_ns)
        captures[on_track] |= (following < len(begin_ns)) & (num_launched <= FILLED)
    return captures


def is_of_timing(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[S]: syncs that time work: of a library that tries kernels, and around all launches of the trace."""
    waits, work = syncs(trace), device_work(trace)
    launched = trace.events.ts[work.call[work.linked]]
    if len(launched) == 0:
        return np.zeros(len(waits), np.bool_)
    outside = (waits.start < launched.min()) | (waits.start > launched.max())
    tries = np.isin(innermost_ops(trace, waits.rows), timing_ops(trace))
    return np.asarray(tries | ((waits.kind == SyncKind.DEVICE) & outside))


def allocates_once(trace: Trace) -> str:
    """Return why the allocations of the counted steps are none of every step; "" where they may be.

    `first_use`: the process uses its device for the first time there. `pool_refill`: memory was returned to the driver
    before these steps, but not in them. `pool_growth`: none was, and they enlarge a pool, which ends, unless most of
    several steps do so.
    """
    waits, all_steps = syncs(trace), steps(trace)
    host = all_steps.host[all_steps.counted]
    if (span_index(host, trace.events.ts[first_device_use(trace)]) >= 0).any():
        return "first_use"
    in_steps = (waits.kind == SyncKind.ALLOC) & (span_index(host, waits.start) >= 0)
    if not in_steps.any() or (in_steps & returns_memory(trace)).any():
        return ""
    if num_returned_before(trace):
        return "pool_refill"
    with_one = sorted_unique(span_index(host, waits.start[in_steps]))
    return "" if len(host) > 1 and 2 * len(with_one) > len(host) else "pool_growth"


def num_returned_before(trace: Trace) -> int:
    """Return how often memory was returned to the driver before the counted steps, but for the capture of a graph."""
    all_steps = steps(trace)
    before = syncs(trace).start < all_steps.host[all_steps.counted][0, 0]
    return int((before & returns_memory(trace) & ~is_in_graph_capture(trace)).sum())


def returns_memory(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[S]: frees by which an allocator returns memory to the driver; a library that starts returns none."""
    waits = syncs(trace)
    frees = (waits.kind == SyncKind.ALLOC) & matching(trace.events, waits.rows, FREE_CALL)
    frees &= trace.events.dur[waits.rows] >= _LEAST_FREE_NS
    return np.asarray(frees & ~np.isin(waits.rows, library_loading_calls(trace)))
