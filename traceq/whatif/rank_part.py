"""One rank's part of a job's graph: its moments, what they wait for, and what of its trace each edge stands for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.causes.edges import EdgeKind
from traceq.causes.replay import replay_of
from traceq.facts.comm.rank_collectives import first_work
from traceq.facts.events.communication_kernels import is_communication
from traceq.facts.events.device_work import device_work, lacks_host_ops
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, unrecorded
from traceq.frozen import frozen
from traceq.grouping import Numbers
from traceq.intervals import Spans, empty, intersect, measure, spans, subtract
from traceq.model import Trace

__all__ = ["RankFacts", "RankPart", "device_part", "rank_facts"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


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
