"""Replay: how long steps last when some waits, collectives or host time take none, by the graph of one recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from traceq.causes.anchors import AnchorKind, anchors
from traceq.causes.common_graph import RecordingGraph, recording_graph
from traceq.causes.edges import EdgeKind
from traceq.causes.holds import launch_queue_length
from traceq.causes.longest_path import longest_paths, paths_to
from traceq.causes.rank_graph import RankGraph, graph_of_one
from traceq.causes.savings import Saving, lasting
from traceq.causes.weights import idle_device_latency, measured_times, weights_of_one
from traceq.causes.windows import host_nodes, step_nodes
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import is_communication
from traceq.facts.events.stream_waits import stream_waits
from traceq.facts.memo import once_per_trace
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.timeline.active_thread import ThreadChains, thread_chains
from traceq.facts.timeline.compilations import compiling
from traceq.facts.timeline.once import once
from traceq.facts.timeline.steps import extent, steps
from traceq.frozen import frozen
from traceq.grouping import inverse
from traceq.intervals import contains, measure_within, sorted_unique, span_index, spans, subtract, union
from traceq.model import Trace

_NEVER = -(2**60)
"""Weight of an edge that delays nothing, ns."""

_EXPLAINED_NS = 30_000
"""Delay beyond what is usual after a dependency that launch latency and clock skew explain."""


@frozen(eq=False)
class Play:
    """The graph with some weights: `ns` int64[X] of the edges `changed` int64[X], of all others as in the recording.

    `step_ns` int64[K] ns: the steps; one whose window ends with the host lasts until its work is done. `host_ns`
    int64[K] ns: the host in each of them. `on_path` bool[E]: edges on a longest path to the begin or end of a step.
    """

    changed: NDArray[np.int64]
    ns: NDArray[np.int64]
    step_ns: NDArray[np.int64]
    host_ns: NDArray[np.int64]
    on_path: NDArray[np.bool_]


@frozen(eq=False, slots=False)  # no slots: what follows from the fields is kept
class Replay:
    """Graph of one recording whose longest paths are the observed times, and its K steps.

    `weight` int64[E] ns replays the recording; `choice` int32[N]: the edge on the longest path into each node, -1 for
    none; `work_node` int64[D]: the node at which device work starts; `chain` int32[N]: the chain of threads, of
    `chains`, that a node of the host is on, 0 for others; `usual` int64 ns of each EdgeKind. `held` int64[X]: the edges
    that belong to a host wait, `hold` int64[X]: to which, and `without` int64[X] ns once that is removed. `begins`,
    `ends` int64[K, S]: the nodes of which the latest is a step's begin or end, -1 for none; `host_begins`, `host_ends`
    likewise of the host alone. `first_ns`: the first anchor on the trace's clock.

    What a change saves is known within a range. At least: all that is not removed delays others as it did, and so does
    what may have been waited for (`observed`); a batch that a data loader's workers had not made when it was asked for
    comes no earlier. At most: waits between streams that are inferred, and delayed nothing in this recording, do not
    exist, such a batch follows its request as it did, and what the device waits for without a recorded reason is gone,
    too (`loosest`).
    Of what a faster device saves, that is what `lasting` leaves.
    """

    trace_reference: ReferenceType[Trace]  # a fact that holds its trace would be kept with it for ever
    graph: RecordingGraph
    weight: NDArray[np.int64]
    choice: NDArray[np.int32]
    work_node: NDArray[np.int64]
    chains: ThreadChains
    chain: NDArray[np.int32]
    usual: NDArray[np.int64]
    held: NDArray[np.int64]
    hold: NDArray[np.int64]
    without: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    host_begins: NDArray[np.int64]
    host_ends: NDArray[np.int64]
    first_ns: int
    observed: Play
    loosest: Play

    @property
    def trace(self) -> Trace:
        """The trace, which has to exist as long as its replay is used."""
        trace = self.trace_reference()
        assert trace is not None
        return trace

    def weight_in(self, play: Play) -> NDArray[np.int64]:
        """Return int64[E] ns: the weights of a play, as a copy."""
        weight = self.weight.copy()
        weight[play.changed] = play.ns
        return weight

    @property
    def time_ns(self) -> NDArray[np.int64]:
        """int64[N] ns: when each node is, on the trace's clock."""
        return self.graph.time_a + self.first_ns

    @property
    def step_ns(self) -> NDArray[np.int64]:
        """int64[K] ns: the steps as they were."""
        return self.observed.step_ns

    @property
    def last_nodes(self) -> NDArray[np.int64]:
        """int64[K]: the node at which each step ends."""
        return _latest_node(self.ends, self.graph.time_a)

    def without_waits(self, removed: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return int64[R, K] ns by which each step becomes shorter at least in R cases.

        `removed` bool[R, H]: host waits removed in each case, of `host_waits`. Nothing waits in a
        removed wait; a copy stays, and costs the host what a launch does. All else takes as long as it did.
        """
        return np.stack([saved for saved, _ in self._saved(self._without(removed), self.observed)])

    def saved_per_step(self, removed: NDArray[np.bool_], *, everywhere: bool = False) -> list[Saving]:
        """Return what the mean counted step saves in R cases; `removed` bool[R, H] as in `without_waits`.

        Waits outside the counted steps stay, unless they are removed `everywhere`: their savings would be credited to
        steps in which nothing was removed.
        """
        cases = removed if everywhere else removed & self._begins_in_step
        return [self._saved_without(case) for case in cases]

    def _saved_without(self, removed: NDArray[np.bool_]) -> Saving:
        key = removed.tobytes()  # several analyses ask for the same waits
        if key not in self._savings_by_case:
            self._savings_by_case[key] = self._savings(list(self._without(removed[None])))[0]
        return self._savings_by_case[key]

    @cached_property
    def _savings_by_case(self) -> dict[bytes, Saving]:
        return {}

    @cached_property
    def without_communication(self) -> Saving:
        """What the mean counted step saves if its `communication` takes no time."""
        return self._savings([(self.communication, 0)], speeds_device=True)[0]

    @cached_property
    def without_host_time(self) -> Saving:
        """What the mean counted step saves if its `host_time` takes none, but for compiling and what is once.

        In a trace without steps nothing is known to follow what the host does after the last work of the device.
        """
        return self._savings([(self.host_time, self._stays)])[0]

    def without_host_time_and(self, removed: NDArray[np.bool_]) -> Saving:
        """Return what the mean counted step saves without its host time, and without host waits, bool[H]."""
        ((held, without),) = self._without((removed & self._begins_in_step)[None])
        return self._savings([(np.r_[self.host_time, held], np.r_[self._stays, without])])[0]

    @cached_property
    def _stays(self) -> NDArray[np.int64]:
        """int64[X] ns of `host_time` that stay without it."""
        edges, stays = self.graph.edges, compiling(self.trace)
        if not steps(self.trace).marked:
            stays = union(stays, np.array([[device_work(self.trace).end.max(initial=0), extent(self.trace)[1]]]))
        stays = subtract(stays, once(self.trace).parts)  # these are in no play
        began_ns, ended_ns = (self.time_ns[nodes[self.host_time]] for nodes in (edges.source, edges.target))
        return measure_within(stays, began_ns, ended_ns)

    def with_shorter_work(self, cases: Sequence[NDArray[np.int64]]) -> list[Saving]:
        """Return what the mean counted step saves if its device work takes no longer than `cases` int64[D] ns each."""
        return self._savings([self._shorter(ns) for ns in cases], speeds_device=True)

    def with_shorter_awaited_work(self, removed: NDArray[np.bool_], work_ns: NDArray[np.int64]) -> Saving:
        """Return what the mean counted step saves without host waits, bool[H], if work takes `work_ns` int64[D]."""
        ((held, without),) = self._without((removed & self._begins_in_step)[None])
        runs, ns = self._shorter(work_ns)
        return self._savings([(np.r_[held, runs], np.r_[without, ns])], speeds_device=True)[0]

    def _shorter(self, work_ns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (the edges of counted steps on which work takes longer than `work_ns` int64[D], their ns there)."""
        edges = self.graph.edges
        runs = np.flatnonzero((edges.kind == EdgeKind.DURATION) & self.is_counted)
        ns = work_ns[edges.a[runs]]
        is_shorter = ns < self.weight[runs]
        return runs[is_shorter], ns[is_shorter]

    @cached_property
    def _without_once(self) -> tuple[Play, Play]:
        """The plays `observed` and `loosest` without what the host does once: later steps have none to overlap with."""
        edges, parts = self.graph.edges, once(self.trace).parts
        host = np.flatnonzero(edges.kind == EdgeKind.HOST)
        ns = measure_within(parts, *(self.time_ns[nodes[host]] for nodes in (edges.source, edges.target)))
        host, ns = host[ns > 0], ns[ns > 0]
        return self._faster_host(self.observed, host, ns), self._faster_host(self.loosest, host, ns)

    def _faster_host(self, play: Play, edges: NDArray[np.int64], ns: NDArray[np.int64]) -> Play:
        """Return a play in which some edges of the host take so much less."""
        if not len(edges):
            return play
        weight = self.weight_in(play)
        weight[edges] -= ns
        changed = sorted_unique(play.changed, edges)
        if play is self.observed and len(batches := np.flatnonzero(self.graph.edges.kind == EdgeKind.BATCH)):
            weight[batches] = _NEVER  # they come when the host would have had them without this time
            time, _ = longest_paths(self.graph.first_edge, self.graph.edges.source, weight)
            weight[batches] = time[self.graph.edges.target[batches]]
            changed = sorted_unique(changed, batches)
        return _play(self.graph, weight, changed, (self.begins, self.ends), (self.host_begins, self.host_ends))[0]

    @property
    def is_a_range(self) -> bool:
        """Whether some waits may not exist, or are not explained."""
        return self.loosest is not self.observed

    @cached_property
    def communication(self) -> NDArray[np.int64]:
        """int64[X]: the edges of the counted steps on which a collective runs, its wait for other ranks included."""
        edges = self.graph.edges
        runs = np.flatnonzero((edges.kind == EdgeKind.DURATION) & self.is_counted)
        return runs[is_communication(self.trace)[edges.a[runs]]]

    @cached_property
    def host_time(self) -> NDArray[np.int64]:
        """int64[X]: the edges of the host's counted steps on which it does not wait.

        A host that is ahead prepares what the device does in a step before the device begins that step.
        """
        edges, all_steps = self.graph.edges, steps(self.trace)
        in_steps = contains(spans(*all_steps.host[all_steps.counted].T), self.time_ns[edges.source])
        return np.flatnonzero((edges.kind == EdgeKind.HOST) & in_steps)

    def unexplained_ns(self) -> int:
        """Return ns by which the mean counted step becomes shorter if no dependency takes 30 us more than usual."""
        return round(float((self.step_ns - self.loosest.step_ns)[steps(self.trace).counted].mean()))

    @property
    def _begins_in_step(self) -> NDArray[np.bool_]:
        """bool[H]: whether a host wait begins in a counted step."""
        all_steps = steps(self.trace)
        return span_index(all_steps.host[all_steps.counted], host_waits(self.trace).start) >= 0

    @cached_property
    def is_counted(self) -> NDArray[np.bool_]:
        """bool[E]: whether an edge begins within a counted step."""
        return self.begin_within(steps(self.trace).counted)

    def begin_within(self, counted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return bool[E]: whether an edge begins within one of some steps, bool[K]."""
        time = self.graph.time_a
        begins, ends = (_latest_time(nodes, time)[counted] for nodes in (self.begins, self.ends))
        return contains(spans(begins, ends), time[self.graph.edges.source])

    def _without(self, removed: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield (edges, their weights) of each case of waits that are removed."""
        for case in removed:
            is_removed = case[self.hold]
            yield self.held[is_removed], self.without[is_removed]

    def _savings(
        self, cases: Sequence[tuple[NDArray[np.int64], NDArray[np.int64] | int]], *, speeds_device: bool = False
    ) -> list[Saving]:
        counted, (play, loosest) = steps(self.trace).counted, self._without_once
        played = [(saved[counted], host_ns[counted]) for saved, host_ns in self._saved(cases, play)]
        saved = [of_case for of_case, _ in played]
        most = [each[counted] for each, _ in self._saved(cases, loosest)] if self.is_a_range else saved
        if speeds_device:
            saved = [lasting(each, play.step_ns[counted], play.host_ns[counted], host_ns) for each, host_ns in played]
        means = [[round(float(of_case.mean())) for of_case in side] for side in (saved, most)]
        by_step = [tuple(of_case.tolist()) for of_case in saved]
        return [Saving(least, max(least, most), of) for least, most, of in zip(*means, by_step, strict=True)]

    def _saved(
        self, cases: Iterable[tuple[NDArray[np.int64], NDArray[np.int64] | int]], play: Play
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield (ns by which steps become shorter with other weights, no higher, of some edges; the host's): int64[K].

        Those are savings of the recorded steps, after which nothing follows.
        """
        first = self.graph.first_edge
        for edges, other in cases:
            if not play.on_path[edges].any():  # every longest path is as long as it was
                yield np.zeros_like(play.step_ns), play.host_ns
                continue
            weight = self.weight_in(play)
            weight[edges] = np.minimum(weight[edges], other)
            time, _ = longest_paths(first, self.graph.edges.source, weight)
            saved = play.step_ns - (_latest_time(self.ends, time) - _latest_time(self.begins, time))
            yield saved, _latest_time(self.host_ends, time) - _latest_time(self.host_begins, time)


@once_per_trace
def replay_of(trace: Trace) -> Replay:
    """Return the graph of a trace with the weights that replay it to the nanosecond."""
    queue_length = launch_queue_length(trace)
    rank = graph_of_one(anchors(trace, queue_length, thread_chains(trace), for_replay=True))
    graph = recording_graph(rank, queue_length)
    usual = measured_times(graph, idle_device_latency(trace))
    weight = weights_of_one(graph, usual)
    begins, ends = windows = step_nodes(rank)
    host_begins, host_ends = host = host_nodes(rank)
    observed, choice = _play(graph, weight, np.empty(0, np.int64), windows, host)
    loosest_weight = _loosest_weight(rank, graph, weight, choice, usual)
    changed = np.flatnonzero(loosest_weight != weight)
    held, hold, without = _removable(rank, graph)
    chain = np.zeros(len(graph.time_a), np.int32)
    chain[rank.host_node] = rank.a.chain
    return Replay(
        trace_reference=ref(trace),
        graph=graph,
        weight=weight,
        choice=choice,
        work_node=rank.start_node[rank.work.unit_of_a],
        chains=rank.a.chains,
        chain=chain,
        usual=usual,
        held=held,
        hold=hold,
        without=without,
        begins=begins,
        ends=ends,
        host_begins=host_begins,
        host_ends=host_ends,
        first_ns=int(rank.a.time_ns[0]),
        observed=observed,
        loosest=_play(graph, loosest_weight, changed, windows, host)[0] if len(changed) else observed,
    )


def _play(
    graph: RecordingGraph,
    weight: NDArray[np.int64],
    changed: NDArray[np.int64],
    windows: tuple[NDArray[np.int64], NDArray[np.int64]],
    host: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> tuple[Play, NDArray[np.int32]]:
    """Return (the graph with some weights, int32[N] the edge on the longest path into each node).

    Of the edges `changed` int64[X] they are others than those that replay the recording. `windows` and `host`: begins
    and ends of the steps, and of the host in them.
    """
    time, choice = longest_paths(graph.first_edge, graph.edges.source, weight)
    nodes = np.concatenate([_latest_node(side, time) for side in windows])
    step_ns, host_ns = (_latest_time(ends, time) - _latest_time(begins, time) for begins, ends in (windows, host))
    return Play(changed, weight[changed], step_ns, host_ns, _edges_on_paths(nodes, choice, graph)), choice


def _loosest_weight(
    rank: RankGraph,
    graph: RecordingGraph,
    weight: NDArray[np.int64],
    choice: NDArray[np.int32],
    usual: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return int64[E] ns: the weights without waits that may not exist, and delays that nothing recorded explains."""
    kind = graph.edges.kind
    to_start = (kind == EdgeKind.LAUNCH) | (kind == EdgeKind.STREAM) | (kind == EdgeKind.AWAIT)
    loosest = np.where(to_start, np.minimum(weight, usual[kind] + _EXPLAINED_NS), weight)
    may_not_exist = _is_inferred(rank, graph)
    may_not_exist[choice[choice >= 0]] = False
    loosest[may_not_exist] = _NEVER
    return loosest


def _is_inferred(rank: RankGraph, graph: RecordingGraph) -> NDArray[np.bool_]:
    """Return bool[E]: waits for streams, threads and workers of a loader that no event of the trace names."""
    waits, size = stream_waits(rank.a.trace), len(rank.work)
    is_inferred: NDArray[np.bool_] = np.isin(graph.edges.kind, (EdgeKind.HAND_OVER, EdgeKind.BATCH))
    awaits = np.flatnonzero(graph.edges.kind == EdgeKind.AWAIT)
    unit = np.searchsorted(rank.start_node, graph.edges.source[awaits] - 1)
    recorded = waits.work[waits.is_recorded] * size + waits.on[waits.is_recorded]
    is_inferred[awaits] = ~np.isin(graph.edges.a[awaits].astype(np.int64) * size + rank.work.a[unit], recorded)
    return is_inferred


def _edges_on_paths(nodes: NDArray[np.int64], choice: NDArray[np.int32], graph: RecordingGraph) -> NDArray[np.bool_]:
    """Return bool[E]: edges on the longest paths to some nodes."""
    since = np.full(len(nodes), np.iinfo(np.int64).min)
    is_reached = paths_to(nodes, since, choice, graph.edges.source, graph.time_a) >= 0
    on_path = np.zeros(len(graph.edges), np.bool_)
    on_path[choice[is_reached & (choice >= 0)]] = True
    return on_path


def _latest_time(nodes: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[K] ns: the time of the latest of the nodes int64[K, S] of each row; -1 is no node."""
    latest: NDArray[np.int64] = _time_of(nodes, time).max(axis=1)
    return latest


def _latest_node(nodes: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[K]: the latest of the nodes int64[K, S] of each row; -1 is no node."""
    latest: NDArray[np.int64] = nodes[np.arange(len(nodes)), _time_of(nodes, time).argmax(axis=1)]
    return latest


def _time_of(nodes: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the time of each node, before all others for -1."""
    return np.where(nodes >= 0, time[nodes], _NEVER)


def _removable(
    rank: RankGraph, graph: RecordingGraph
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (the edges that belong to a host wait, which it is, their weight once it is removed, ns): int64[X] each.

    Host time within a wait goes with it; another wait within, and one for a place in the launch queue, stays.
    """
    line, edges, waits = rank.a, graph.edges, host_waits(rank.a.trace)
    by_chain = line.by_chain
    position = inverse(by_chain, len(line))
    begin, end = (position[anchor[: len(waits)]] for anchor in (line.hold_begins, line.hold_ends))
    is_end_of = np.full(len(line), -1)
    is_end_of[end] = np.arange(len(waits))
    wait = np.full(len(line), -1)
    for chosen in (np.flatnonzero(waits.call < 0), np.flatnonzero(waits.call >= 0)):  # a call within a loader's wait
        num = np.maximum(end[chosen] - begin[chosen], 0)
        first = np.cumsum(num) - num
        wait[np.arange(num.sum()) + np.repeat(begin[chosen] + 1 - first, num)] = np.repeat(chosen, num)
    wait[(line.kind[by_chain] == AnchorKind.HOLD_END) & (is_end_of != wait)] = -1
    place = np.full(len(graph.time_a), -1)
    place[rank.host_node] = np.arange(len(line))
    hold = np.r_[wait[position], -1][place[edges.target]]
    held = np.flatnonzero(hold >= 0)
    hold, kind = hold[held], edges.kind[held]
    waits_for_work = (kind == EdgeKind.SYNC) | (kind == EdgeKind.QUEUE)
    stays = np.where(waits.call >= 0, waits.end - waits.start - waits.saves, 0)
    return held, hold, np.where(waits_for_work, _NEVER, np.where(kind == EdgeKind.HOLD, stays[hold], 0))
