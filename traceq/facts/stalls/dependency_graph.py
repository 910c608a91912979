"""Dependency graph of a trace: what each device operation and each host wait depends on, and the slack of each edge.

A node's time is the latest time of its dependencies plus its own delay. In shifts (ns later than observed): a node's
shift is the maximum over its dependencies of (shift - slack). At least one edge of each node has no slack, so the
unchanged graph reproduces the observed times to the nanosecond.

The host is modelled as one sequence: the main thread and, while that waits, a thread that launches work (backward).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import DeviceWork, device_work
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.events.stream_waits import AT_ONCE_NS, StreamWaits, stream_waits
from traceq.facts.memo import once_per_trace
from traceq.facts.stalls.max_plus import FAR
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind, blocking_calls
from traceq.facts.timeline.call_sites import CLOCK_SKEW_NS
from traceq.facts.timeline.data_loading import loader_waits
from traceq.facts.timeline.steps import main_track
from traceq.intervals import measure_within, sorted_unique, spans
from traceq.model import Trace

__all__ = ["Graph", "HostWaits", "dependency_graph"]


@dataclass(frozen=True, slots=True, eq=False)
class HostWaits:
    """Waits on the host line that a change of the program could remove: blocking calls, then waits for the data loader.

    H waits: `call` int64[H] into BlockingCalls, -1 for the loader; `start`, `end` int64[H] ns; `saves` int64[H] ns of
    host time that removing the wait gives back; `host_slack` int64[H] ns: slack of the host's arrival.
    W edges from device work to a wait: `wait` int64[W] into the H waits, `work` int64[W] into DeviceWork, `work_slack`
    int64[W] ns: slack of that work's end.
    """

    call: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    saves: NDArray[np.int64]
    host_slack: NDArray[np.int64]
    wait: NDArray[np.int64]
    work: NDArray[np.int64]
    work_slack: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.call)


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Dependencies of D device operations and of the host's waits.

    `num_streams`; `stream` int64[D] 0..num_streams-1; `before` int64[D] the previous work on its stream, -1 for none;
    `order` int64[D] its position in a topological order, in which dependencies come first; `launched` int64[D] ns,
    ascending with `order`, when the host launched it (before the trace: the least int64); `delay` int64[D] ns from the
    last dependency to the start; `launch_slack`, `stream_slack` int64[D] ns slack of these edges, FAR without one;
    `awaits`: edges between streams, with `await_slack` int64 ns each; `latency_ns`: launch to start on an idle stream.
    """

    num_streams: int
    stream: NDArray[np.int64]
    before: NDArray[np.int64]
    order: NDArray[np.int64]
    launched: NDArray[np.int64]
    delay: NDArray[np.int64]
    launch_slack: NDArray[np.int64]
    stream_slack: NDArray[np.int64]
    awaits: StreamWaits
    await_slack: NDArray[np.int64]
    host_waits: HostWaits
    latency_ns: int


@once_per_trace
def dependency_graph(trace: Trace) -> Graph:
    """Return the dependency graph of a whole trace; without a device it has only the host line."""
    work = device_work(trace)
    streams = sorted_unique(work.stream)
    stream = np.searchsorted(streams, work.stream)
    before = _before(work, stream)
    launched = _launch_times(trace, work, stream)
    order = np.empty(len(work), np.int64)
    order[np.argsort(launched, kind="stable")] = np.arange(len(work))
    never = np.iinfo(np.int64).min
    call_ns = np.where(work.linked, trace.events.ts[work.call], never) if len(work) else work.start
    done = np.where(before >= 0, work.end[before], never) if len(work) else work.start
    latency_ns = _latency(work, call_ns, done)
    by_stream = np.minimum(done, work.start)
    usual = np.where(call_ns > never, call_ns + np.minimum(work.start - call_ns, latency_ns), never)
    edges = stream_waits(trace, order, np.maximum(usual, by_stream))
    by_others = by_stream.copy()
    np.maximum.at(by_others, edges.work, work.end[edges.on])
    by_launch = _earliest_by_launch(work, usual, by_others)
    ready = np.maximum(by_launch, by_others)
    anchored = ready == never
    ready = np.where(anchored, work.start, ready)
    return Graph(
        num_streams=len(streams),
        stream=stream,
        before=before,
        order=order,
        launched=launched,
        delay=work.start - ready,
        launch_slack=_slack(ready, by_launch),
        stream_slack=np.where(anchored, 0, _slack(ready, by_stream)),
        awaits=edges,
        await_slack=ready[edges.work] - work.end[edges.on],
        host_waits=_host_waits(trace, work, stream, launched),
        latency_ns=latency_ns,
    )


def _slack(ready: NDArray[np.int64], allowed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[D] ns from when an edge allowed the start to when all did; FAR without that edge."""
    exists = allowed > np.iinfo(np.int64).min
    return np.where(exists, ready - np.where(exists, allowed, 0), FAR)


def _before(work: DeviceWork, stream: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the previous work on the same stream, -1 for the first."""
    before = np.full(len(work), -1)
    for number in range(int(stream.max(initial=-1)) + 1):
        same_stream = np.flatnonzero(stream == number)
        before[same_stream[1:]] = same_stream[:-1]
    return before


def _launch_times(trace: Trace, work: DeviceWork, stream: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[D] ns: when the host launched each operation, made ascending per stream.

    Work without a call counts as launched with the work before it.
    """
    never = np.iinfo(np.int64).min
    launched = np.where(work.linked, trace.events.ts[work.call], never) if len(work) else work.start.copy()
    for number in range(int(stream.max(initial=-1)) + 1):
        same_stream = np.flatnonzero(stream == number)
        launched[same_stream] = np.maximum.accumulate(launched[same_stream])
    return launched


def _latency(work: DeviceWork, call_ns: NDArray[np.int64], done: NDArray[np.int64]) -> int:
    """Return the median ns from launch to start on an idle stream; AT_ONCE_NS if no stream was ever idle."""
    waited = (work.start - call_ns)[work.linked & (done <= call_ns)]
    return max(int(np.median(waited)), 0) if len(waited) else AT_ONCE_NS


def _earliest_by_launch(work: DeviceWork, usual: NDArray[np.int64], by_others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[D] ns: the earliest start that each launch allows.

    That is the `usual` latency after the launch. For work that waited for nothing else it is the observed start, but
    at most CLOCK_SKEW_NS later than usual.
    """
    is_binding = (usual > np.iinfo(np.int64).min) & (usual >= by_others)
    return np.where(is_binding, np.minimum(work.start, np.where(is_binding, usual, 0) + CLOCK_SKEW_NS), usual)


def _host_waits(trace: Trace, work: DeviceWork, stream: NDArray[np.int64], launched: NDArray[np.int64]) -> HostWaits:
    """Return the blocking calls of the host line with the work they wait for, then the waits for the data loader."""
    calls = blocking_calls(trace)
    chosen = _calls_on_host_line(trace)
    start, end = calls.start[chosen], calls.end[chosen]
    wait, awaited = _awaited_work(trace, work, chosen, stream, launched)
    over = start.copy()
    np.maximum.at(over, wait, np.minimum(work.end[awaited], end[wait]))
    stays = np.where(calls.copy[chosen] >= 0, np.minimum(_launch_cost(trace, work), end - start), 0)
    load_start, load_end = loader_waits(trace).T
    return HostWaits(
        call=np.r_[chosen, np.full(len(load_start), -1)],
        start=np.r_[start, load_start],
        end=np.r_[end, load_end],
        saves=np.r_[
            end - start - stays, load_end - load_start - measure_within(spans(start, end), load_start, load_end)
        ],
        host_slack=np.r_[over - start, np.zeros(len(load_start), np.int64)],
        wait=wait,
        work=awaited,
        work_slack=over[wait] - np.minimum(work.end[awaited], end[wait]),
    )


def _calls_on_host_line(trace: Trace) -> NDArray[np.int64]:
    """Return the blocking calls of the active thread: the main one or, while that is in no op, one that launches."""
    calls, main = blocking_calls(trace), main_track(trace)
    if len(calls) == 0:
        return np.empty(0, np.int64)
    work = device_work(trace)
    launching = sorted_unique(tracks(trace)[work.call[work.linked]])
    main_ops = host_ops(trace).get(main)
    main_idles = ~main_ops.is_open(calls.start) if main_ops is not None else np.ones(len(calls), np.bool_)
    chosen = np.flatnonzero((calls.track == main) | (main_idles & np.isin(calls.track, launching)))
    reach = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, calls.end[chosen]])[:-1]
    alone: NDArray[np.int64] = chosen[calls.start[chosen] >= reach]
    return alone


def _awaited_work(
    trace: Trace, work: DeviceWork, chosen: NDArray[np.int64], stream: NDArray[np.int64], launched: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (position in `chosen`, work whose end that call waits for).

    A copy waits for itself, any other call for the last work that ended in time, and a device synchronize for the last
    work launched on every stream.
    """
    calls = blocking_calls(trace)
    order = np.argsort(work.end, kind="stable")
    num_ended = np.searchsorted(work.end[order], calls.awaited[chosen], "right")
    last = np.where(num_ended > 0, order[num_ended - 1], -1) if len(order) else num_ended - 1
    last = np.where(calls.copy[chosen] >= 0, calls.copy[chosen], last)
    named = np.flatnonzero((last >= 0) & ~calls.is_alloc[chosen])
    pairs = [named * len(work) + last[named]]
    whole = np.flatnonzero(calls.kind[chosen] == SyncKind.DEVICE)
    for number in range(int(stream.max(initial=-1)) + 1):
        same_stream = np.flatnonzero(stream == number)
        num_launched = np.searchsorted(launched[same_stream], calls.start[chosen[whole]], "left")
        has_work = num_launched > 0
        pairs.append(whole[has_work] * len(work) + same_stream[num_launched[has_work] - 1])
    wait, awaited = np.divmod(sorted_unique(*pairs), max(len(work), 1))
    return wait, awaited


def _launch_cost(trace: Trace, work: DeviceWork) -> int:
    """Return the median ns of a launch on the host: what a copy still costs once nothing waits for it."""
    launches = sorted_unique(work.call[work.linked])
    launches = launches[~np.isin(launches, blocking_calls(trace).rows)]
    return int(np.median(trace.events.dur[launches])) if len(launches) else 0
