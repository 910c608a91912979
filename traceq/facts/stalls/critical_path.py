"""Critical path of every step, walked back from its end: from each start to the last dependency.

The path follows the edges of the dependency graph without slack: from device work to the previous work on its stream,
to work of another stream, or to the host's launch; along the host to its last binding wait, and to the awaited work.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.communication_kernels import is_communication
from traceq.facts.events.device_work import DeviceWork, device_work
from traceq.facts.events.host_boundaries import host_boundaries
from traceq.facts.events.name_patterns import unique_names
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.stalls.dependency_graph import Graph, dependency_graph
from traceq.facts.stalls.host_labels import HostLabels
from traceq.facts.stalls.replay import step_durations
from traceq.facts.timeline.active_thread import active_thread
from traceq.facts.timeline.data_loading import loader_waits
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track, steps
from traceq.intervals import Spans, contains, cut
from traceq.model import Category, Trace

__all__ = ["CriticalPath", "PathKind", "Predecessors", "critical_path", "last_work", "path_through", "predecessors"]

_NEVER = np.iinfo(np.int64).min
_MIN_SILENCE_NS = 1_000_000
_MAX_DELAY_NS = 100_000


class PathKind(IntEnum):
    """Kind of a piece of the path; JSON uses the names in lower case with spaces."""

    KERNEL = 0
    COLLECTIVE = 1
    COPY = 2
    LAUNCH_LATENCY = 3
    QUEUE = 4
    SYNC_RETURN = 5
    HOST_OP = 6
    PYTHON = 7
    DATA_LOADER = 8
    BEFORE = 9


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """P pieces in order, which tile the counted steps.

    `parts` int64[P, 2] ns; `kind` int64[P] of PathKind; `phase` int64[P]; `name`, `line` int64[P] into `texts`;
    `segment` int64[P]: pieces of one edge or node of the path share a number.
    """

    texts: tuple[str, ...]
    parts: Spans
    kind: NDArray[np.int64]
    phase: NDArray[np.int64]
    name: NDArray[np.int64]
    line: NDArray[np.int64]
    segment: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Predecessors:
    """Predecessor on the path of each of D device operations.

    `work` int64[D]: the last of its dependencies to end, -1 for none; `work_end` int64[D] ns, that end; `returned`,
    `launched` int64[D] ns: when the host returned from waiting for that work, and when it launched this one; the least
    int64 where the path does not pass through the host. `kind` int64[D] of PathKind; `host_waits`: (end, awaited work,
    its end) of the host's binding waits, by end.
    """

    work: NDArray[np.int64]
    work_end: NDArray[np.int64]
    returned: NDArray[np.int64]
    launched: NDArray[np.int64]
    kind: NDArray[np.int64]
    host_waits: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class _LegWork:
    """P candidate pairs (leg, device work within it), ordered by work.

    `leg`, `work` int64[P]; `overlaps` bool[P]: the work does run within the leg; for each device operation `first_leg`
    int64[D], the leg of its first pair, and `first_pair` int64[D + 1], that pair.
    """

    leg: NDArray[np.int64]
    work: NDArray[np.int64]
    overlaps: NDArray[np.bool_]
    first_leg: NDArray[np.int64]
    first_pair: NDArray[np.int64]

    def pair(self, leg: NDArray[np.int64], work: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[X]: the pair of each leg and work, -1 where that work does not run within the leg."""
        pair = self.first_pair[work] + leg - self.first_leg[work]
        exists = (work >= 0) & (pair >= self.first_pair[work]) & (pair < self.first_pair[work + 1])
        exists[exists] = self.overlaps[pair[exists]]
        return np.where(exists, pair, -1)


def critical_path(trace: Trace) -> CriticalPath:
    """Return the path through each counted step, from its end to its start; its pieces add up to the steps."""
    counted = steps(trace).counted
    start = steps(trace).window[counted, 0]
    return path_through(trace, start, start + step_durations(trace)[counted], np.full(len(start), -1))


def path_through(
    trace: Trace, start: NDArray[np.int64], end: NDArray[np.int64], before: NDArray[np.int64]
) -> CriticalPath:
    """Return the path back from each `end` to its `start`: K legs int64[K] ns, disjoint and ascending.

    Where `before` int64[K] is device work, which starts at the end of the leg, the path goes back from that work; else
    (-1) from what ends with the leg. All legs are walked at once.
    """
    previous, work = predecessors(trace), device_work(trace)
    pairs = _leg_work(work, start, end)
    first, tail = _first_pairs(work, previous, pairs, start, end, before)
    reached = _reached(pairs, previous.work, first[first >= 0])
    leads = np.flatnonzero(before >= 0)
    leads = leads[pairs.pair(leads, before[leads]) < 0]
    on_path = np.r_[pairs.leg[reached], leads], np.r_[pairs.work[reached], before[leads]]
    leg, begin, kind, work_index = _segments(work, previous, *on_path, tail)
    begin = np.maximum(begin, start[leg])
    order = np.lexsort((begin, leg))
    leg, begin, kind, work_index = leg[order], begin[order], kind[order], work_index[order]
    is_last_at_time = np.r_[(begin[1:] > begin[:-1]) | (leg[1:] != leg[:-1]), np.ones(min(len(begin), 1), np.bool_)]
    non_empty = np.flatnonzero(is_last_at_time & (begin < end[leg]))
    leg, begin, until = leg[non_empty], begin[non_empty], end[leg[non_empty]]
    followed = np.flatnonzero(leg[1:] == leg[:-1])
    until[followed] = begin[followed + 1]
    return _with_names(trace, np.column_stack([begin, until]), kind[non_empty], work_index[non_empty])


def last_work(trace: Trace, end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (int64[K] into DeviceWork: the work that ends with a leg, int64[K] ns: the latest start of such a leg).

    `end` int64[K] ns: the ends of the legs. Where no work ends then, it is the work that the host waited for last, -1
    if there is none. A leg that starts later than the second array does not contain the work.
    """
    work, last = device_work(trace), np.full(len(end), -1)
    order = np.argsort(end, kind="stable")
    nearest = np.minimum(np.searchsorted(end[order], work.end), len(end) - 1)
    ends_with_leg = np.flatnonzero((end[order[nearest]] == work.end) & (work.start < work.end))[::-1]
    last[order[nearest[ends_with_leg]]] = ends_with_leg  # of several the first is written last
    until = end.copy()
    returned, awaited, _ = predecessors(trace).host_waits
    by_host = np.flatnonzero(last < 0)
    wait = np.searchsorted(returned, end[by_host], "right") - 1
    by_host, wait = by_host[wait >= 0], wait[wait >= 0]
    ran = work.start[awaited[wait]] < end[by_host]
    by_host, wait = by_host[ran], wait[ran]
    last[by_host], until[by_host] = awaited[wait], np.minimum(returned[wait], work.end[awaited[wait]])
    return last, until


@once_per_trace
def predecessors(trace: Trace) -> Predecessors:
    """Return the predecessors by edges without slack: other streams' work first, then the stream's, then the launch."""
    graph, work = dependency_graph(trace), device_work(trace)
    edges, size = graph.awaits, len(work)
    previous, previous_end = np.full(size, -1), np.full(size, _NEVER)
    returned, launched = np.full(size, _NEVER), np.full(size, _NEVER)
    by_stream = (graph.stream_slack == 0) & (graph.before >= 0)
    previous[by_stream] = graph.before[by_stream]
    binding = np.flatnonzero(graph.await_slack == 0)
    previous[edges.work[binding]] = edges.on[binding]
    previous_end[previous >= 0] = np.minimum(work.end[previous], work.start)[previous >= 0]
    by_launch = np.flatnonzero((previous < 0) & (graph.launch_slack == 0))
    launched[by_launch] = trace.events.ts[work.call[by_launch]]
    waits = wait_end, awaited, awaited_end = _binding_waits(trace, graph, work)
    wait = np.searchsorted(wait_end, launched[by_launch], "right") - 1
    by_wait, wait = by_launch[wait >= 0], wait[wait >= 0]
    previous[by_wait], previous_end[by_wait] = awaited[wait], awaited_end[wait]
    returned[by_wait] = wait_end[wait]
    return Predecessors(previous, previous_end, returned, launched, _kinds(trace), waits)


def _binding_waits(
    trace: Trace, graph: Graph, work: DeviceWork
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (end, awaited work, its end) of the waits that delayed the host, by end."""
    waits = graph.host_waits
    binding = np.flatnonzero((waits.work_slack == 0) & (waits.host_slack[waits.wait] > 0))
    silent_end, silent_awaited = _silent_waits(trace, work)
    end, awaited = np.r_[waits.end[waits.wait[binding]], silent_end], np.r_[waits.work[binding], silent_awaited]
    order = np.argsort(end, kind="stable")
    end, awaited = end[order], awaited[order]
    return end, awaited, np.minimum(work.end[awaited], end)


def _silent_waits(trace: Trace, work: DeviceWork) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (end, awaited work) of waits without an event of their own, such as those of torch's allocator on free.

    The main thread makes no call for at least 1 ms, a collective runs for nearly all of that time, and the next call
    follows its end.
    """
    events, comm = trace.events, np.flatnonzero(is_communication(trace))
    calls = events.rows(Category.RUNTIME)
    calls = calls[tracks(trace)[calls] == main_track(trace)]
    calls = calls[np.argsort(events.ts[calls], kind="stable")]
    if len(comm) == 0 or len(calls) == 0:
        return comm[:0], comm[:0]
    start, end = np.maximum.accumulate(events.end[calls])[:-1], events.ts[calls][1:]
    comm = comm[np.argsort(work.end[comm], kind="stable")]
    index = np.searchsorted(work.end[comm], end, "right") - 1
    awaited = comm[index]
    is_silence = (index >= 0) & (end - work.end[awaited] <= _MAX_DELAY_NS) & (end - start >= _MIN_SILENCE_NS)
    is_wait = is_silence & (work.start[awaited] - start <= (end - start) // 10)
    return end[is_wait], awaited[is_wait]


def _leg_work(work: DeviceWork, start: NDArray[np.int64], end: NDArray[np.int64]) -> _LegWork:
    """Return the device work within legs [start, end) int64[K] ns, sorted by start."""
    first_leg = np.searchsorted(np.maximum.accumulate(end), work.start, "right")
    num = np.maximum(np.searchsorted(start, work.end, "left") - first_leg, 0)
    first_pair = np.r_[0, np.cumsum(num)]
    pair_work = np.repeat(np.arange(len(work)), num)
    leg = np.arange(len(pair_work)) - (first_pair[:-1] - first_leg)[pair_work]
    return _LegWork(leg, pair_work, work.start[pair_work] < end[leg], first_leg, first_pair)


_Tail = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""(leg, begin ns, PathKind) of the host's segments between the last work on the path and the end of a leg."""


def _first_pairs(
    work: DeviceWork,
    previous: Predecessors,
    pairs: _LegWork,
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    before: NDArray[np.int64],
) -> tuple[NDArray[np.int64], _Tail]:
    """Return (int64[K]: the pair from which the path of each leg goes back, -1 for none; the host's segments after it).

    That is the work `before` or else its predecessor where `before` is given, else the work that ends with the leg.
    Where no work does, the leg ends on the host: then it is the work that the host waited for last, if within the leg.
    """
    last = np.flatnonzero(pairs.overlaps & (work.end[pairs.work] == end[pairs.leg]))[::-1]
    pair = np.full(len(end), -1)
    pair[pairs.leg[last]] = last  # of several the first is written last
    leads = np.flatnonzero(before >= 0)
    pair_within = pairs.pair(leads, before[leads])
    pair[leads] = np.where(pair_within >= 0, pair_within, pairs.pair(leads, previous.work[before[leads]]))
    returned, awaited, awaited_end = previous.host_waits
    by_host = np.flatnonzero((pair < 0) & (before < 0))
    wait = np.searchsorted(returned, end[by_host], "right") - 1
    has_wait = wait >= 0
    has_wait[has_wait] = returned[wait[has_wait]] > start[by_host[has_wait]]
    alone, by_host, wait = by_host[~has_wait], by_host[has_wait], wait[has_wait]
    kinds = [int(PathKind.SYNC_RETURN), int(PathKind.HOST_OP), int(PathKind.HOST_OP)]
    pair[by_host] = pairs.pair(by_host, awaited[wait])
    tail = (
        np.r_[by_host, by_host, alone],
        np.r_[awaited_end[wait], returned[wait], start[alone]],
        np.repeat(kinds, [len(wait), len(wait), len(alone)]),
    )
    return pair, tail


def _reached(pairs: _LegWork, previous: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the pairs, ascending, that the paths reach from their `first` pairs, by pointer doubling."""
    onward = pairs.pair(pairs.leg, previous[pairs.work])
    jump = np.where(onward >= 0, onward, np.arange(len(onward)))
    reached = np.zeros(len(jump), np.bool_)
    reached[first] = True
    for _ in range(int(np.bincount(pairs.leg).max(initial=0)).bit_length()):
        reached[jump[reached]] = True
        jump = jump[jump]
    return np.flatnonzero(reached)


def _segments(
    work: DeviceWork, previous: Predecessors, leg: NDArray[np.int64], on_path: NDArray[np.int64], tail: _Tail
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (leg, begin ns, PathKind, the work that runs or comes next) of each segment of the path.

    The work is -1 in the host's segments at the end of a leg. Of segments that begin together the last one counts.
    """
    launched = previous.launched[on_path] > _NEVER
    by_host, queued = np.flatnonzero(launched), np.flatnonzero(~launched)
    returned = by_host[previous.returned[on_path[by_host]] > _NEVER]
    has_previous = previous.work[on_path[queued]] >= 0
    device_kinds = (PathKind.KERNEL, PathKind.COLLECTIVE, PathKind.COPY)
    segments = (
        (previous.work_end, PathKind.SYNC_RETURN, returned),
        (previous.returned, PathKind.HOST_OP, by_host),
        (previous.launched, PathKind.LAUNCH_LATENCY, by_host),
        (previous.work_end, PathKind.QUEUE, queued[has_previous]),
        (previous.work_end, PathKind.BEFORE, queued[~has_previous]),
        *((work.start, kind, np.flatnonzero(previous.kind[on_path] == kind)) for kind in device_kinds),
    )
    return (
        np.concatenate([tail[0], *(leg[rows] for _, _, rows in segments)]),
        np.concatenate([tail[1], *(begin[on_path[rows]] for begin, _, rows in segments)]),
        np.concatenate([tail[2], *(np.full(len(rows), int(kind)) for _, kind, rows in segments)]),
        np.concatenate([np.full(len(tail[0]), -1), *(on_path[rows] for _, _, rows in segments)]),
    )


def _kinds(trace: Trace) -> NDArray[np.int64]:
    """Return int64[D] of PathKind: kernel, collective or copy."""
    is_kernel = trace.events.category[device_work(trace).rows] == Category.KERNEL
    kind = np.where(is_kernel, PathKind.KERNEL, PathKind.COPY)
    return np.where(is_communication(trace), PathKind.COLLECTIVE, kind)


def _with_names(trace: Trace, whole: Spans, kind: NDArray[np.int64], work_index: NDArray[np.int64]) -> CriticalPath:
    """Return the named segments; the host's are cut where an op, an annotation or a Python frame begins or ends."""
    events, work, labels = trace.events, device_work(trace), HostLabels(trace)
    cuts = host_boundaries(trace)
    parts, segment = cut(whole, cuts[contains(whole[kind == PathKind.HOST_OP], cuts)])
    kind, work_index = kind[segment], work_index[segment]
    name, line = np.zeros(len(kind), np.int64), np.zeros(len(kind), np.int64)
    phase = phases(trace).main_phase_at(parts[:, 0])
    is_host = (kind == PathKind.HOST_OP) | (kind == PathKind.SYNC_RETURN)
    if len(work):
        by_work = np.flatnonzero((work_index >= 0) & ~is_host)
        phase[by_work] = phases(trace).work_phase[work_index[by_work]]
        on_device = np.flatnonzero((kind == PathKind.KERNEL) | (kind == PathKind.COLLECTIVE) | (kind == PathKind.COPY))
        ids, inverse = unique_names(events, work.rows[work_index[on_device]])
        name[on_device] = labels.numbered(tuple(events.strings[text] for text in ids.tolist()))[inverse]
    host = np.flatnonzero(is_host)
    active = active_thread(trace, parts[host, 0])
    name[host], line[host] = labels.on_host(active, np.arange(len(host)))
    loads = host[contains(loader_waits(trace), active.time_ns) & (kind[host] == PathKind.HOST_OP)]
    kind[loads], name[loads], line[loads] = PathKind.DATA_LOADER, 0, 0
    without_op = np.flatnonzero((kind[host] == PathKind.HOST_OP) & (name[host] == 0))
    kind[host[without_op]] = PathKind.PYTHON
    name[host[without_op]] = labels.around(active.track[without_op], active.time_ns[without_op])
    return CriticalPath(tuple(labels.texts), parts, kind, phase, name, line, segment)
