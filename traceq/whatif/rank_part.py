"""One rank's part of a job's graph: its moments, what they wait for, and what of its trace each edge stands for.

Of a rank with a device it is the replayed graph; of one without, one line of the host and the collectives that gloo's
threads run, for which the host waits where it computes nothing until they end. A contracted rank has no events: what is
between its collectives is as few edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traceq.causes.edges import EdgeKind
from traceq.causes.replay import replay_of
from traceq.facts.comm.rank_collectives import first_work, rank_calls
from traceq.facts.events.device_work import device_work, lacks_host_ops
from traceq.facts.events.kernels import is_communication
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, unrecorded
from traceq.frozen import frozen
from traceq.grouping import Numbers
from traceq.intervals import (
    Spans,
    contains,
    empty,
    intersect,
    measure,
    measure_within,
    sorted_unique,
    span_index,
    spans,
    subtract,
)
from traceq.model import Trace
from traceq.whatif.limits import AT_ONCE_NS, LEAST_WAIT_NS

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@frozen(eq=False)
class ContractedRank:
    """N moments and E edges of one rank, with the same longest paths as its whole part has; fields as in `RankPart`.

    `changed` int64[E, 2 C] ns: the weights in C `cases`, each the options of what is changed in it, at least and at
    most. Of each option, `lacking`: the names of what is there instead, only where there is nothing to change;
    `allocating`: how often each call of the allocator is removed.
    """

    facts: RankFacts
    time: Ints
    source: Ints
    target: Ints
    observed: Ints
    loosest: Ints
    changed: Ints
    cases: tuple[str, ...]
    call: Ints
    begins: Ints
    ends: Ints
    host_begins: Ints
    host_ends: Ints
    counted_steps: Mask
    communication: Ints
    lacking: Mapping[str, tuple[str, ...]]
    allocating: Mapping[str, Mapping[str, int]]

    def allocations(self, option: str) -> Counter[str]:
        """Return how often each call of the allocator is removed by an option."""
        return Counter(self.allocating[option])


@frozen
class RankFacts:
    """What is said of a rank and its counted steps, all times ns of the mean one.

    `shown_ns`: the step by its own begin and end; `unrecorded_ns`: in which unrecorded work runs; `lone_waits_ns`: in
    which a host communicates, but waits for no collective. `is_marked`: the steps have marks.
    `lacks_host_ops`: what the host does between its calls is in no recorded op.
    """

    rank: int
    world_size: int
    is_marked: bool
    has_device: bool
    lacks_host_ops: bool
    shown_ns: int
    unrecorded_ns: float
    lone_waits_ns: float


@frozen(eq=False)
class RankPart:
    """N moments and E edges of one rank, and its K steps.

    `time` int64[N] ns by the trace's clock; `source`, `target` [E]; edges from moment 0 start the rank. `observed`
    int64[E] ns: weights that replay the recording; `loosest` int64[E] ns: without delays that nothing recorded
    explains, and waits that may not exist. `host` int64[X]: edges on which the host runs, `chain` [X] that of its
    threads; it waits for others in `waits`. `launch` int64[X]: from a launch to its work; `work` [E]: the device
    work that an edge runs, -1 for none. `held` int64[Y]: edges that are part of a wait of the host, `hold` int64[Y]: of
    which, `without` int64[Y] ns once that is removed. `call` int64[C]: the edge of each collective, -1 without one.
    `begins`, `ends` int64[K, S]: the moments of which the latest is a step's begin or end, -1 for none; `host_begins`,
    `host_ends` likewise of the host alone, where there is a device. `counted` bool[E]: begins within a counted step,
    `counted_steps` bool[K]: those that all ranks counted. `communication` int64[X]: edges of these on which a
    collective runs, its wait for other ranks included.
    """

    trace: Trace
    facts: RankFacts
    time: Ints
    source: Numbers
    target: Numbers
    observed: Ints
    loosest: Ints
    host: Ints
    chain: Numbers
    waits: Spans
    launch: Ints
    work: Numbers
    held: Ints
    hold: Ints
    without: Ints
    counted: Mask
    call: Ints
    begins: Ints
    ends: Ints
    host_begins: Ints
    host_ends: Ints
    counted_steps: Mask
    communication: Ints

    @property
    def counted_windows(self) -> Spans:
        """int64[P, 2] ns: the windows of the counted steps."""
        return spans(*steps(self.trace).window[self.counted_steps].T)

    @property
    def counted_on_host(self) -> Ints:
        """int64[C, 2] ns: the counted steps as the host ran them."""
        return steps(self.trace).host[self.counted_steps]


def device_part(trace: Trace, counted: Mask) -> RankPart:
    """Return the part of a rank by its replayed graph, of which all that `show` says of removed waits comes.

    `counted` bool[K]: the steps that means are taken over.
    """
    replay = replay_of(trace)
    edges = replay.graph.edges
    runs = np.flatnonzero(edges.kind == EdgeKind.DURATION)
    work, edge_of_work = np.full(len(edges), -1, np.int32), np.full(int(edges.a[runs].max(initial=-1)) + 2, -1)
    work[runs] = edges.a[runs]
    edge_of_work[edges.a[runs]] = runs
    call_work = first_work(trace)
    time = replay.time_ns
    time[0] = replay.first_ns
    host = np.flatnonzero(edges.kind == EdgeKind.HOST)
    is_counted = replay.begin_within(counted)
    of_work = np.flatnonzero((work >= 0) & is_counted)
    return RankPart(
        trace=trace,
        facts=rank_facts(trace, counted, empty()),
        time=time,
        source=edges.source,
        target=edges.target,
        observed=replay.weight,
        loosest=replay.weight_in(replay.loosest) if replay.is_a_range else replay.weight,
        host=host,
        chain=replay.chain[edges.target[host]],
        waits=empty(),
        launch=np.flatnonzero(edges.kind == EdgeKind.LAUNCH),
        work=work,
        held=replay.held,
        hold=replay.hold,
        without=replay.without,
        counted=is_counted,
        call=np.where(call_work >= 0, edge_of_work[call_work], -1),
        begins=replay.begins,
        ends=replay.ends,
        host_begins=replay.host_begins,
        host_ends=replay.host_ends,
        counted_steps=counted,
        communication=of_work[is_communication(trace)[work[of_work]]],
    )


def rank_facts(trace: Trace, counted: Mask, waits: Spans) -> RankFacts:
    """Return the facts of a rank and some of its steps, bool[K]; it waits for collectives in `waits`."""
    has_device, windows = len(device_work(trace)) > 0, steps(trace).window[counted]
    alone = empty() if has_device else subtract(activity(trace).when(TimeCategory.EXPOSED_COMM), waits)
    unrecorded_ns, lone_waits_ns = (
        measure(intersect(times, spans(*windows.T))) / len(windows) for times in (unrecorded(trace), alone)
    )
    return RankFacts(
        rank=trace.rank,
        world_size=trace.world_size,
        is_marked=steps(trace).marked,
        has_device=has_device,
        lacks_host_ops=lacks_host_ops(trace),
        shown_ns=round(float((windows[:, 1] - windows[:, 0]).mean())),
        unrecorded_ns=unrecorded_ns,
        lone_waits_ns=lone_waits_ns,
    )


def host_part(trace: Trace, counted: NDArray[np.bool_]) -> RankPart:
    """Return the part of a rank: moments of the host, then start and end of each collective.

    `counted` bool[K]: the steps that means are taken over.
    """
    all_steps, calls = steps(trace), rank_calls(trace).columns
    ran = np.flatnonzero(calls.start >= 0)
    ran = ran[np.argsort(calls.start[ran], kind="stable")]
    issued, start, end = (column[ran] - trace.base_time_ns for column in (calls.issued_ns, calls.start, calls.end))
    issued = np.minimum(issued, start)
    idle = activity(trace).when(TimeCategory.EXPOSED_COMM)
    wait = span_index(idle, end - 1)
    waited = (wait >= 0) & (end > issued)
    waited[waited] = end[waited] - _begin(idle, end[waited]) >= LEAST_WAIT_NS
    host_times = sorted_unique(all_steps.host.ravel(), issued, end[waited])
    num, place = len(host_times), 1 + np.arange(len(host_times))
    return_of, issue_of = (np.searchsorted(host_times, moments) + 1 for moments in (end, issued))
    start_of = 1 + num + 2 * np.arange(len(ran))
    waits = spans(*_waits(idle, host_times, end[waited]))
    before = np.r_[host_times[:1], host_times[:-1]]
    host_ns = host_times - before - measure_within(waits, before, host_times)
    follows, previous, gap = _queued(issued, start, end)
    lag = start - issued
    alone = np.setdiff1d(np.arange(len(ran)), follows)
    usual = int(np.median(lag[alone])) if len(alone) else 0
    lag[follows] = np.minimum(lag[follows], usual)
    source = np.r_[np.r_[0, place[:-1]], issue_of, start_of, start_of[previous] + 1, start_of[waited] + 1]
    target = np.r_[place, start_of, start_of + 1, start_of[follows], return_of[waited]]
    weight = np.r_[host_ns, lag, end - start, gap, np.zeros(int(waited.sum()), np.int64)]
    time = np.r_[host_times[:1], host_times, np.column_stack([start, end]).ravel()]
    none, call = np.empty(0, np.int64), np.full(len(calls), -1)
    call[ran] = num + len(ran) + np.arange(len(ran))
    begins, ends = (1 + np.searchsorted(host_times, all_steps.host[:, [side]]) for side in (0, 1))
    is_counted = contains(spans(*all_steps.host[counted].T), time[source])
    return RankPart(
        trace=trace,
        facts=rank_facts(trace, counted, waits),
        time=time,
        source=source,
        target=target,
        observed=weight,
        loosest=weight,
        host=np.arange(1, num),
        chain=np.zeros(num - 1, np.int64),
        waits=waits,
        launch=none,
        work=np.full(len(source), -1),
        held=none,
        hold=none,
        without=none,
        counted=is_counted,
        call=call,
        begins=begins,
        ends=ends,
        host_begins=begins[:, :0],
        host_ends=ends[:, :0],
        counted_steps=counted,
        communication=np.flatnonzero(np.isin(np.arange(len(source)), call) & is_counted),
    )


def _waits(
    idle: NDArray[np.int64], host_times: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (start, end) of the waits up to some ends: since the host's moment before, or since it was last busy."""
    since = np.maximum(host_times[np.maximum(np.searchsorted(host_times, end) - 1, 0)], _begin(idle, end))
    return np.minimum(since, end), end


def _begin(idle: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    return idle[span_index(idle, end - 1), 0] if len(end) else end


def _queued(
    issued: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (collectives that had to wait for another one, that one, ns between them), given in order of start."""
    by_end = np.argsort(end, kind="stable")
    last = np.searchsorted(end[by_end], start, "right") - 1
    previous = np.r_[by_end, -1][last]
    gap = start - np.r_[end, 0][previous]
    is_earlier = (last >= 0) & (np.r_[start, 0][previous] < start) & (np.r_[end, 0][previous] > issued)
    follows = np.flatnonzero(is_earlier & (gap <= AT_ONCE_NS))
    return follows, previous[follows], gap[follows]
