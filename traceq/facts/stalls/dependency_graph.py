"""What each piece of device work and each wait of the host depends on, and with how much slack: a step as a graph.

A node's time is the latest of what it depends on, and then its own delay. In shifts (how much later than observed) that
reads: a node's shift is the largest of its dependencies' shifts, each less the slack of that edge. At least one edge of
a node has no slack, so the unchanged graph gives the observed times back to the nanosecond.

The host is one line: its threads take turns, the main one and, while it waits, one that launches (backward).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import DeviceWork, device_work
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.events.stream_waits import AT_ONCE_NS, Awaits, awaits
from traceq.facts.memo import once_per_trace
from traceq.facts.stalls.max_plus import FAR
from traceq.facts.timeline.blocking_calls import SyncKind, blocking_calls
from traceq.facts.timeline.call_sites import CLOCK_SKEW_NS
from traceq.facts.timeline.data_loading import loading
from traceq.facts.timeline.steps import main_track
from traceq.intervals import measure_within, sorted_unique, spans
from traceq.model import Trace

__all__ = ["Graph", "HostWaits", "dependency_graph"]


@dataclass(frozen=True, slots=True, eq=False)
class HostWaits:
    """H stretches of the host line that a change of the program could take out: driving blocking calls, then waits for
    the data loader.

    `call` int64[H] into BlockingCalls, -1 for the loader; `start`, `end` int64[H] ns; `saves` int64[H] ns of host time
    that go if it does; `by_host` int64[H] ns: slack of the host's arrival. W waits for work: `hold` int64[W], `on`
    int64[W] into DeviceWork, `by_work` int64[W] ns: slack of that work's end.
    """

    call: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    saves: NDArray[np.int64]
    by_host: NDArray[np.int64]
    hold: NDArray[np.int64]
    on: NDArray[np.int64]
    by_work: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.call)


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Dependencies of D pieces of device work, and of the host line's holds.

    `num_streams`; `stream` int64[D] 0..num_streams-1; `before` int64[D] the work before it on its stream, -1 for none;
    `place` int64[D] its rank in an order in which all that it depends on comes first; `turn` int64[D] ns, ascending
    with `place`, when the host launched it (before the trace: the least int64); `delay` int64[D] ns from the last
    dependency to the start; `by_launch`, `by_stream` int64[D] ns slack of these edges, FAR without one;
    `awaits`: edges between streams; `latency_ns`: launch to start on an idle stream.
    """

    num_streams: int
    stream: NDArray[np.int64]
    before: NDArray[np.int64]
    place: NDArray[np.int64]
    turn: NDArray[np.int64]
    delay: NDArray[np.int64]
    by_launch: NDArray[np.int64]
    by_stream: NDArray[np.int64]
    awaits: Awaits
    by_await: NDArray[np.int64]
    holds: HostWaits
    latency_ns: int


@once_per_trace
def dependency_graph(trace: Trace) -> Graph:
    """The graph of a whole trace; without a device only the host line."""
    work = device_work(trace)
    streams = sorted_unique(work.stream)
    stream = np.searchsorted(streams, work.stream)
    before = _before(work, stream)
    turn = _turns(trace, work, stream)
    place = np.empty(len(work), np.int64)
    place[np.argsort(turn, kind="stable")] = np.arange(len(work))
    least = np.iinfo(np.int64).min
    launched = np.where(work.linked, trace.events.ts[work.call], least) if len(work) else work.start
    done = np.where(before >= 0, work.end[before], least) if len(work) else work.start
    latency_ns = _latency(work, launched, done)
    by_stream = np.minimum(done, work.start)
    usual = np.where(launched > least, launched + np.minimum(work.start - launched, latency_ns), least)
    found = awaits(trace, place, np.maximum(usual, by_stream))
    by_others = by_stream.copy()
    np.maximum.at(by_others, found.work, work.end[found.on])
    by_host = _launches_take_effect(work, usual, by_others)
    ready = np.maximum(by_host, by_others)
    anchored = ready == least
    ready = np.where(anchored, work.start, ready)
    return Graph(
        num_streams=len(streams),
        stream=stream,
        before=before,
        place=place,
        turn=turn,
        delay=work.start - ready,
        by_launch=_slack(ready, by_host),
        by_stream=np.where(anchored, 0, _slack(ready, by_stream)),
        awaits=found,
        by_await=ready[found.work] - work.end[found.on],
        holds=_holds(trace, work, stream, turn),
        latency_ns=latency_ns,
    )


def _slack(ready: NDArray[np.int64], by: NDArray[np.int64]) -> NDArray[np.int64]:
    there = by > np.iinfo(np.int64).min
    return np.where(there, ready - np.where(there, by, 0), FAR)


def _before(work: DeviceWork, stream: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index of the work that started before each on the same stream, -1 for the first."""
    before = np.full(len(work), -1)
    for number in range(int(stream.max(initial=-1)) + 1):
        mine = np.flatnonzero(stream == number)
        before[mine[1:]] = mine[:-1]
    return before


def _turns(trace: Trace, work: DeviceWork, stream: NDArray[np.int64]) -> NDArray[np.int64]:
    """When the host came to launch each; never before the work in front of it, which work without a call follows."""
    turn = np.where(work.linked, trace.events.ts[work.call], np.iinfo(np.int64).min) if len(work) else work.start.copy()
    for number in range(int(stream.max(initial=-1)) + 1):
        mine = np.flatnonzero(stream == number)
        turn[mine] = np.maximum.accumulate(turn[mine])
    return turn


def _latency(work: DeviceWork, launched: NDArray[np.int64], done: NDArray[np.int64]) -> int:
    """Median ns from a launch to the start of work that found its stream idle; AT_ONCE_NS where none ever did."""
    waited = (work.start - launched)[work.linked & (done <= launched)]
    return max(int(np.median(waited)), 0) if len(waited) else AT_ONCE_NS


def _launches_take_effect(
    work: DeviceWork, usual: NDArray[np.int64], by_others: NDArray[np.int64]
) -> NDArray[np.int64]:
    """int64[D] ns: when each launch would have let its work start.

    That is the `usual` latency later; for work that waited for nothing else as late as it started, within reason.
    """
    waited_for = (usual > np.iinfo(np.int64).min) & (usual >= by_others)
    return np.where(waited_for, np.minimum(work.start, np.where(waited_for, usual, 0) + CLOCK_SKEW_NS), usual)


def _holds(trace: Trace, work: DeviceWork, stream: NDArray[np.int64], turn: NDArray[np.int64]) -> HostWaits:
    """Driving calls with what they wait for, then the loader's rows."""
    calls = blocking_calls(trace)
    chosen = _driving(trace)
    start, end = calls.start[chosen], calls.end[chosen]
    hold, on = _awaited_work(trace, work, chosen, stream, turn)
    over = start.copy()
    np.maximum.at(over, hold, np.minimum(work.end[on], end[hold]))
    stays = np.where(calls.copy[chosen] >= 0, np.minimum(_launch_cost(trace, work), end - start), 0)
    from_, to = loading(trace).T
    return HostWaits(
        call=np.r_[chosen, np.full(len(from_), -1)],
        start=np.r_[start, from_],
        end=np.r_[end, to],
        saves=np.r_[end - start - stays, to - from_ - measure_within(spans(start, end), from_, to)],
        by_host=np.r_[over - start, np.zeros(len(from_), np.int64)],
        hold=hold,
        on=on,
        by_work=over[hold] - np.minimum(work.end[on], end[hold]),
    )


def _driving(trace: Trace) -> NDArray[np.int64]:
    """Blocking calls of the thread whose turn it is: the main one, or, while that is in no op, one that launches."""
    calls, own = blocking_calls(trace), main_track(trace)
    if len(calls) == 0:
        return np.empty(0, np.int64)
    work = device_work(trace)
    launching = sorted_unique(tracks(trace)[work.call[work.linked]])
    main_ops = host_ops(trace).get(own)
    main_idles = ~main_ops.is_open(calls.start) if main_ops is not None else np.ones(len(calls), np.bool_)
    chosen = np.flatnonzero((calls.track == own) | (main_idles & np.isin(calls.track, launching)))
    reach = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, calls.end[chosen]])[:-1]
    alone: NDArray[np.int64] = chosen[calls.start[chosen] >= reach]
    return alone


def _awaited_work(
    trace: Trace, work: DeviceWork, chosen: NDArray[np.int64], stream: NDArray[np.int64], turn: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(position in `chosen`, work whose end that call waits for): its copy, or what was last to end in time; for a
    device synchronize on every stream what was launched last.
    """
    calls = blocking_calls(trace)
    order = np.argsort(work.end, kind="stable")
    at = np.searchsorted(work.end[order], calls.awaited[chosen], "right") - 1
    last = np.where(at >= 0, order[at], -1) if len(order) else at
    last = np.where(calls.copy[chosen] >= 0, calls.copy[chosen], last)
    named = np.flatnonzero((last >= 0) & ~calls.is_alloc[chosen])
    pairs = [named * len(work) + last[named]]
    whole = np.flatnonzero(calls.kind[chosen] == SyncKind.DEVICE)
    for number in range(int(stream.max(initial=-1)) + 1):
        mine = np.flatnonzero(stream == number)
        at = np.searchsorted(turn[mine], calls.start[chosen[whole]], "left") - 1
        pairs.append(whole[at >= 0] * len(work) + mine[at[at >= 0]])
    hold, on = np.divmod(sorted_unique(*pairs), max(len(work), 1))
    return hold, on


def _launch_cost(trace: Trace, work: DeviceWork) -> int:
    """Median ns that the host spends in a launch: what a copy still costs it that no longer waits."""
    launches = sorted_unique(work.call[work.linked])
    launches = launches[~np.isin(launches, blocking_calls(trace).rows)]
    return int(np.median(trace.events.dur[launches])) if len(launches) else 0
