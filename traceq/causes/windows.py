"""Windows of a rank's paired steps on the common graph: what has to be over when a step begins and ends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.causes.anchors import AnchorKind
from traceq.causes.rank_graph import RankGraph
from traceq.facts.events.device_work import device_work
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import sorted_unique


@frozen(eq=False)
class StepWindows:
    """K paired counted steps, in W runs of neighbours.

    `steps` int64[K, 2]: their index on either side; `nodes` int64[K, 2]: from the first to before the second node the
    host is in that step; `sinks`: for the begin and the end of each run in turn, the nodes of which the latest is it.
    """

    steps: NDArray[np.int64]
    nodes: NDArray[np.int64]
    sinks: tuple[NDArray[np.int64], ...]


def step_windows(graph: RankGraph) -> StepWindows:
    """Return the steps that both sides count; without step marks each side is one step.

    Windows that follow the device end with the last work launched in a step and telescope, others with the host.
    """
    of_a, of_b, shift = steps(graph.a.trace), steps(graph.b.trace), graph.alignment.shift
    if not (of_a.marked and of_b.marked):
        end = np.r_[graph.host_node[graph.kind == AnchorKind.END], _last_ends(graph, len(graph.kind))]
        nodes = np.array([[graph.host_node[0], len(graph.time_a)]], np.int64)
        return StepWindows(np.zeros((1, 2), np.int64), nodes, (np.r_[graph.host_node[:1], opening(graph)], end))
    begins, ends = _places(graph, AnchorKind.STEP_BEGIN), _places(graph, AnchorKind.STEP_END)
    of_both = {int(number) - shift for number in np.flatnonzero(of_b.counted)} & begins.keys() & ends.keys()
    counted = [number for number in np.flatnonzero(of_a.counted).tolist() if number in of_both]
    by_device = of_a.by_device and of_b.by_device
    is_only = of_a.is_only and of_b.is_only
    sinks: list[NDArray[np.int64]] = []
    resumes = {*np.flatnonzero(of_a.begins_session).tolist(), *(np.flatnonzero(of_b.begins_session) - shift).tolist()}
    for first, last in _runs(counted, resumes) if by_device else [(number, number) for number in counted]:
        begin = graph.host_node[[begins[first]]]
        if first == 0:
            begin = np.r_[begin, opening(graph)]
        if by_device and first - 1 in ends:
            on_device = _last_ends(graph, ends[first - 1])
            begin = np.r_[begin, on_device] if first in resumes else on_device
        sinks.append(begin)
        on_device, on_host = _last_ends(graph, ends[last]), graph.host_node[[ends[last]]]
        sinks.append(np.r_[on_device, on_host] if is_only else on_device if by_device else on_host)
    places = np.array([[begins[number], ends[number]] for number in counted], np.int64).reshape(-1, 2)
    indices = np.array(counted, np.int64)[:, None] + np.array([0, shift], np.int64)
    return StepWindows(indices, graph.host_node[places] + 1, tuple(sinks))


def opening(graph: RankGraph) -> NDArray[np.int64]:
    """Return the node at which the first step begins after unrecorded work: int64[1], or int64[0] without any.

    That is where both sides open with the same work.
    """
    units = []
    for line, unit_of in ((graph.a, graph.work.unit_of_a), (graph.b, graph.work.unit_of_b)):
        if (opens_ns := steps(line.trace).opens_ns) is not None:
            units.append(int(unit_of[np.searchsorted(device_work(line.trace).start, opens_ns)]))
    is_same = len(units) == 2 and units[0] == units[1]
    return graph.start_node[units[:1]] if is_same else graph.start_node[:0]


def _places(graph: RankGraph, kind: AnchorKind) -> dict[int, int]:
    """Return the place of each step's anchor that both sides have, by the step's index on A."""
    places = np.flatnonzero((graph.anchor_a >= 0) & (graph.anchor_b >= 0) & (graph.kind == kind))
    return dict(zip(graph.a.ref[graph.anchor_a[places]].tolist(), places.tolist(), strict=True))


def _runs(numbers: list[int], resumes: set[int]) -> list[tuple[int, int]]:
    """Return (first, last) of each run of neighbouring numbers; those at which a profiler session resumes begin one."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1 and number not in resumes:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def last_ends(graph: RankGraph, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[P, S]: the end node of the last work of each stream before some places of the host, -1 for none.

    Where threads launch on one stream, each side may have a last one of its own, and the stream two columns.
    """
    work = graph.work
    num_before, columns = np.searchsorted(work.place, places, "left"), []
    for number in sorted_unique(work.stream).tolist():
        on_stream = np.flatnonzero(work.stream == number)
        end = graph.start_node[on_stream] + 1
        count = np.searchsorted(on_stream, num_before, "left")
        in_a, in_b = (end[_running_last(time[end])] for time in (graph.time_a, graph.time_b))
        for last in (in_a,) if np.array_equal(in_a, in_b) else (in_a, in_b):
            columns.append(np.where(count > 0, last[count - 1], -1))
    return np.stack(columns, axis=1) if columns else np.empty((len(places), 0), np.int64)


def _running_last(time: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[K]: the index of the latest of the times up to each one, of equal ones the last."""
    index = np.arange(len(time))
    return np.asarray(np.maximum.accumulate(np.where(time == np.maximum.accumulate(time), index, 0)))


def _last_ends(graph: RankGraph, place: int) -> NDArray[np.int64]:
    """Return the end nodes of the last work before a place, one of each stream."""
    nodes: NDArray[np.int64] = last_ends(graph, np.array([place]))[0]
    return nodes.compress(nodes >= 0)


def step_nodes(rank: RankGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (int64[K, S] the nodes of which the latest is the begin of each step, the end), -1 for none.

    No step begins before the work of the one before it is done: a host without its waits runs ahead of the device.
    """
    all_steps, (begin, end) = steps(rank.a.trace), _step_anchors(rank)
    on_device = last_ends(rank, end if all_steps.marked else end + 1)
    before = np.concatenate([np.full_like(on_device[:1], -1), on_device[:-1]])
    by_host = np.full(len(all_steps), not all_steps.by_device)
    begin_node = np.where(by_host | all_steps.begins_session, rank.host_node[begin], -1)
    end_node = np.where(by_host | all_steps.is_only, rank.host_node[end], -1)
    return np.column_stack([_opening(rank), begin_node, before]), np.column_stack([end_node, on_device])


def host_nodes(rank: RankGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (int64[K, 2] the nodes of which the latest is the begin of the host in each step, int64[K, 1] its end).

    A step of the host begins where the one before ends, within a session of the profiler.
    """
    begin, end = (rank.host_node[anchor] for anchor in _step_anchors(rank))
    since = np.where(steps(rank.a.trace).begins_session, begin, np.r_[begin[:1], end[:-1]])
    return np.column_stack([_opening(rank), since]), end[:, None]


def _step_anchors(rank: RankGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (the begin of each step of the host, its end): int64[K] anchors."""
    line = rank.a
    if not steps(line.trace).marked:
        return np.zeros(1, np.int64), np.flatnonzero(line.kind == AnchorKind.END)
    begin, end = (np.flatnonzero(line.kind == kind) for kind in (AnchorKind.STEP_BEGIN, AnchorKind.STEP_END))
    begin, end = (anchor[np.argsort(line.ref[anchor], kind="stable")] for anchor in (begin, end))
    return begin, end


def _opening(rank: RankGraph) -> NDArray[np.int64]:
    """Return int64[K]: the node with which the first step begins after unrecorded work, -1 for none."""
    opens = np.full(len(steps(rank.a.trace)), -1)
    opens[: len(opening(rank))] = opening(rank)
    return opens
