"""Streams that wait for another's work: by StreamWaitEvent calls, `cuda_sync` rows, or coincident times."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.copies import COPY_CALL
from traceq.facts.events.device_work import DeviceWork, device_work, first_index, launch_times, stream_number
from traceq.facts.events.graph_replays import graph_replays
from traceq.facts.events.name_patterns import matching, rows_named
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.frozen import frozen
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

_MOST_STREAMS = 64
"""Streams that one call is taken to wait for: twice as many as a trace has; all pairs of thousands fill any memory."""

_AT_ONCE_NS = 10_000
"""Device work that starts this soon after other work's end, or after its launch, waited for nothing else."""

_WAIT_CALL, _WAIT_ROW = re.compile(r"StreamWaitEvent"), re.compile(r"Stream Wait Event")


def synced_stream(trace: Trace, calls: NDArray[np.int64], pattern: re.Pattern[str] | None = None) -> NDArray[np.int64]:
    """Return the stream named by the `cuda_sync` row that shares each call's correlation id: int64[K].

    Streams are numbered as in DeviceWork; -1 without such a row. Only rows whose name matches `pattern` count.
    """
    events = trace.events
    rows = events.rows(Category.SYNC)
    rows = rows[events.stream[rows] >= 0]
    if pattern is not None:
        rows = rows[matching(events, rows, pattern)]
    index = first_index(events.correlation[rows], events.correlation[calls])
    return np.asarray(np.r_[stream_number(events.device[rows], events.stream[rows]), -1][index])


def recorded_events(trace: Trace, calls: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (int64[K] the stream on which the event that each call waits for was recorded, int64[K] ns, when).

    Streams are numbered as in DeviceWork. Both -1 if no `cuda_sync` row of the same correlation tells, or the recording
    call is not in the trace.
    """
    events, waits = trace.events, trace.events.waits
    if len(waits.row) == 0:
        return np.full(len(calls), -1), np.full(len(calls), -1)
    runtime = events.rows(Category.RUNTIME)
    record = np.r_[runtime, -1][first_index(events.correlation[runtime], waits.record)]
    is_recorded = record >= 0
    index = first_index(events.correlation[waits.row[is_recorded]], events.correlation[calls])
    stream = np.r_[stream_number(events.device[waits.row], waits.stream)[is_recorded], -1]
    recorded = np.r_[events.ts[record[is_recorded]], -1]
    return stream[index], recorded[index]


@frozen(eq=False)
class StreamWaits:
    """X edges between streams: `work` and `on` int64[X] into DeviceWork; `work` starts after the end of `on`.

    `is_recorded` bool[X]: the trace names the event, or both are of one copy; else the edge is inferred.
    """

    work: NDArray[np.int64]
    on: NDArray[np.int64]
    is_recorded: NDArray[np.bool_]


@once_per_trace
def stream_waits(trace: Trace) -> StreamWaits:
    """Return the edges between streams.

    A trace records that a stream waits, but seldom for what. Where a `cuda_sync` row names the recording of the event,
    the first work on the stream after such a call waits for what was launched before on the stream of that event. Else
    the first work that the thread launches (or that runs on the stream a row names) waits for everything that other
    streams had been given before and had finished by its start. In addition, work that starts late, right after the
    end of work on another stream, waits for that work.
    """
    work = device_work(trace)
    launch_order = np.empty(len(work), np.int64)
    launch_order[np.argsort(launch_times(trace), kind="stable")] = np.arange(len(work))
    calls = rows_named(trace.events, _WAIT_CALL, Category.RUNTIME)
    delayed = _first_delayed(trace, work, launch_order, calls)
    event_stream, recorded_ns = recorded_events(trace, calls)
    is_recorded = event_stream >= 0
    by_event = _edges_of_events(trace, work, *(column[is_recorded] for column in (delayed, event_stream, recorded_ns)))
    of_copies = _edges_of_copies(trace, work)
    by_call = _edges_of_calls(work, launch_order, sorted_unique(delayed[~is_recorded & (delayed >= 0)]))
    by_time = _coincident_edges(trace, work, launch_order, calls)
    keys = [waiting * len(work) + on for waiting, on in (by_event, of_copies, by_call, by_time)]
    pairs = sorted_unique(*keys)
    return StreamWaits(*np.divmod(pairs, max(len(work), 1)), np.isin(pairs, np.concatenate(keys[:2])))


def _first_delayed(
    trace: Trace, work: DeviceWork, launch_order: NDArray[np.int64], calls: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the first work that each wait call delays: int64[calls] into DeviceWork, -1 if none follows."""
    events, row_track = trace.events, tracks(trace)
    linked = np.flatnonzero(work.linked)
    linked = linked[np.lexsort((launch_order[linked], events.ts[work.call[linked]]))]
    launched, stream = events.ts[work.call[linked]], synced_stream(trace, calls, _WAIT_ROW)
    first = np.full(len(calls), -1)
    by_thread = row_track[calls], row_track[work.call[linked]]
    by_stream = stream, work.stream[linked]
    for call_key, work_key in (by_thread, by_stream):
        for key in sorted_unique(call_key[call_key >= 0]).tolist():
            waits, candidates = np.flatnonzero(call_key == key), linked[work_key == key]
            index = np.searchsorted(launched[work_key == key], events.end[calls[waits]], "left")
            first[waits] = np.r_[candidates, -1][index]
    return first


def _edges_of_events(
    trace: Trace,
    work: DeviceWork,
    waiting: NDArray[np.int64],
    event_stream: NDArray[np.int64],
    recorded_ns: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (work, on): each of `waiting`, -1 for none, with the last work launched on a stream before an event."""
    launched, on = launch_times(trace), np.full(len(waiting), -1)
    for number in sorted_unique(event_stream).tolist():
        of_number, on_stream = np.flatnonzero(event_stream == number), np.flatnonzero(work.stream == number)
        index = np.searchsorted(launched[on_stream], recorded_ns[of_number], "left") - 1
        on[of_number] = np.r_[on_stream, -1][index]
    waits = (waiting >= 0) & (on >= 0) & (work.stream[waiting] != work.stream[on])
    waits &= work.end[on] <= work.start[waiting]
    return waiting[waits], on[waits]


def _edges_of_copies(trace: Trace, work: DeviceWork) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (work, on): the halves of a copy between devices that have no access to each other, from and to the host.

    One call launches both, each on a stream of its own device.
    """
    copies = np.flatnonzero(work.linked & (trace.events.category[work.rows] == Category.MEMCPY))
    copies = copies[matching(trace.events, work.call[copies], COPY_CALL)]
    copies = copies[np.argsort(work.call[copies], kind="stable")]
    on, waiting = copies[:-1], copies[1:]
    follows = (work.call[waiting] == work.call[on]) & (work.stream[waiting] != work.stream[on])
    follows &= work.end[on] <= work.start[waiting]
    return waiting[follows], on[follows]


def _edges_of_calls(
    work: DeviceWork, launch_order: NDArray[np.int64], waiting: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (work, on): each of `waiting` with the last work launched before it on every other stream.

    Only if that work ended before the waiting one started; of more than _MOST_STREAMS such streams the last to end.
    """
    edges, num_edges = [np.empty((0, 2), np.int64)], 0
    for number in sorted_unique(work.stream).tolist():
        on_stream = np.flatnonzero(work.stream == number)
        on_stream = on_stream[np.argsort(launch_order[on_stream])]
        index = np.searchsorted(launch_order[on_stream], launch_order[waiting]) - 1
        last = on_stream[index]
        holds = (index >= 0) & (work.stream[waiting] != number) & (work.end[last] <= work.start[waiting])
        edges.append(np.column_stack([waiting[holds], last[holds]]))
        num_edges += len(edges[-1])
        if num_edges > 2 * _MOST_STREAMS * len(waiting):
            edges = [_last_to_end(work, np.concatenate(edges))]
            num_edges = len(edges[0])
    pairs = _last_to_end(work, np.concatenate(edges))
    return pairs[:, 0], pairs[:, 1]


def _last_to_end(work: DeviceWork, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the pairs (work, on), of each work at most _MOST_STREAMS: those whose `on` ended last."""
    if len(pairs) <= _MOST_STREAMS:
        return pairs
    order = np.lexsort((-work.end[pairs[:, 1]], pairs[:, 0]))
    waiting = pairs[order, 0]
    place = np.arange(len(order)) - np.searchsorted(waiting, waiting, "left")
    return np.asarray(pairs[np.sort(order[place < _MOST_STREAMS])])


def _coincident_edges(
    trace: Trace,
    work: DeviceWork,
    launch_order: NDArray[np.int64],
    calls: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (work, on): work that starts late, right after the end of other work, where streams can wait.

    That is after the trace's first wait call, between work that one call launched (a graph), or after a graph: it may
    run on other streams than the one it is launched on, whose next work waits for all of it.
    """
    if len(work) == 0:
        return work.rows, work.rows
    order = np.argsort(work.end, kind="stable")
    index = np.searchsorted(work.end[order], work.start, "right") - 1
    on = np.where(index >= 0, order[index], -1)
    is_late = (work.start - work.end[on] <= _AT_ONCE_NS) & (work.start - _ready(trace, work) > _AT_ONCE_NS)
    follows = (on >= 0) & (launch_order[on] < launch_order) & is_late
    of_graph = (work.linked & (work.call == work.call[on])) | graph_replays(trace).replayed[on]
    first_wait = trace.events.ts[calls].min(initial=np.iinfo(np.int64).max)
    waiting = np.flatnonzero(follows & ((work.start > first_wait) | of_graph))
    return waiting, on[waiting]


def _ready(trace: Trace, work: DeviceWork) -> NDArray[np.int64]:
    """Return int64[D] ns: when each operation could start by its launch and by its stream.

    A launch takes the median time of those that found their stream idle, or as long as it did, if that is shorter.
    """
    never = np.iinfo(np.int64).min
    done = np.full(len(work), never)  # when the work before it on its stream ended
    for number in sorted_unique(work.stream).tolist():
        on_stream = np.flatnonzero(work.stream == number)
        done[on_stream[1:]] = work.end[on_stream[:-1]]
    launched = np.where(work.linked, trace.events.ts[work.call], never)
    waited = (work.start - launched)[work.linked & (done <= launched)]
    latency_ns = max(int(np.median(waited)), 0) if len(waited) else _AT_ONCE_NS
    usual = np.where(work.linked, launched + np.minimum(work.start - launched, latency_ns), never)
    ready: NDArray[np.int64] = np.maximum(usual, np.minimum(done, work.start))
    return ready
