"""Critical path of every step, walked back from its end over the edges that bind in the replayed graph.

It goes from device work to the previous work on its stream, to work of another stream, or to the host's launch; along
the host to its last binding wait, and to the awaited work.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.causes.edges import EdgeKind
from traceq.causes.longest_path import paths_to
from traceq.causes.replay import replay_of
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import is_communication, is_spin_wait
from traceq.facts.events.name_patterns import unique_names
from traceq.facts.events.nesting import host_boundaries
from traceq.facts.stalls.idle_time import HostLabels
from traceq.facts.timeline.active_thread import active_in_chains
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.facts.timeline.compilations import compiling
from traceq.facts.timeline.data_loading import loader_waits
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import unrecorded, unrecorded_backward
from traceq.frozen import frozen
from traceq.intervals import Spans, contains, cut, sorted_unique, spans
from traceq.model import Category, Trace


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
    UNRECORDED = 10
    SPIN_WAIT = 11
    ALLOCATION = 12
    COMPILING = 13


@frozen(eq=False)
class CriticalPath:
    """P pieces in order, which tile the counted steps.

    `parts` int64[P, 2] ns; `kind` int8[P] of PathKind; `phase` int32[P]; `name`, `line` int32[P] into `texts`;
    `segment` int64[P]: pieces of one edge or node of the path share a number.
    """

    texts: tuple[str, ...]
    parts: Spans
    kind: NDArray[np.int8]
    phase: NDArray[np.int32]
    name: NDArray[np.int32]
    line: NDArray[np.int32]
    segment: NDArray[np.int64]


_ON_DEVICE = (PathKind.KERNEL, PathKind.SPIN_WAIT, PathKind.COLLECTIVE, PathKind.COPY)

_KIND_OF_EDGE = np.full(len(EdgeKind), PathKind.BEFORE, np.int8)
for _edge_kind, _path_kind in {
    EdgeKind.HOST: PathKind.HOST_OP,
    EdgeKind.HOLD: PathKind.HOST_OP,
    EdgeKind.SYNC: PathKind.SYNC_RETURN,
    EdgeKind.QUEUE: PathKind.SYNC_RETURN,
    EdgeKind.HAND_OVER: PathKind.HOST_OP,
    EdgeKind.LAUNCH: PathKind.LAUNCH_LATENCY,
    EdgeKind.STREAM: PathKind.QUEUE,
    EdgeKind.AWAIT: PathKind.QUEUE,
    EdgeKind.DURATION: PathKind.KERNEL,
}.items():
    _KIND_OF_EDGE[_edge_kind] = _path_kind


_WAITS_FOR_THE_DEVICE = (PathKind.LAUNCH_LATENCY, PathKind.QUEUE, PathKind.SYNC_RETURN)


def critical_path(trace: Trace) -> CriticalPath:
    """Return the path through each counted step, from its end to its start; its pieces add up to the steps."""
    replay, counted = replay_of(trace), steps(trace).counted
    start = steps(trace).window[counted, 0]
    return path_through(trace, start, start + replay.step_ns[counted], replay.last_nodes[counted])


def path_through(
    trace: Trace, start: NDArray[np.int64], end: NDArray[np.int64], last: NDArray[np.int64]
) -> CriticalPath:
    """Return the path back from each `end` to its `start`: K legs int64[K] ns, disjoint and ascending.

    `last` int64[K]: the nodes of the replayed graph at which they end. All legs are walked at once.
    """
    return _with_names(trace, *_segments(trace, start, end, last))  # what finds these is freed before they get names


def _segments(
    trace: Trace, start: NDArray[np.int64], end: NDArray[np.int64], last: NDArray[np.int64]
) -> tuple[Spans, NDArray[np.int8], NDArray[np.int32], NDArray[np.int32]]:
    """Return the segments of all legs: (int64[X, 2] ns, PathKind, the work or -1 on the host, the chain of threads)."""
    replay = replay_of(trace)
    edges = replay.graph.edges
    leg_of_node = paths_to(last, start, replay.choice, edges.source, replay.time_ns)
    node = np.flatnonzero((leg_of_node >= 0) & (replay.choice >= 0))
    node = node[np.argsort(leg_of_node[node], kind="stable")]
    leg, edge = leg_of_node[node], replay.choice[node]
    begin, until = _tiles(replay.time_ns[node], leg, start, end)
    kind, work_index = _KIND_OF_EDGE[edges.kind[edge]], edges.a[edge]
    runs = kind == PathKind.KERNEL
    kind[runs] = _kinds(trace)[work_index[runs]]
    work_index[_is_host(kind)] = -1
    rows = np.flatnonzero(until > begin)
    is_host = kind[rows] == PathKind.HOST_OP  # between two waits the host's time is one segment
    part = leg.astype(np.int64) * len(replay.chains) + replay.chain[node]
    continues = np.r_[False, is_host[1:] & is_host[:-1] & (part[rows[1:]] == part[rows[:-1]])][: len(rows)]
    ends = rows[~np.r_[continues[1:], False][: len(rows)]]
    rows = rows[~continues]
    whole = np.column_stack([begin[rows], until[ends]])
    return whole, kind[rows], work_index[rows], replay.chain[node[rows]]


def _tiles(
    time_ns: NDArray[np.int64], leg: NDArray[np.int32], start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (begin, end) int64[X] ns of segments that tile their legs, given when each ends; sorted by leg."""
    is_first = np.r_[True, leg[1:] != leg[:-1]][: len(leg)]
    is_last = np.r_[is_first[1:], True][: len(leg)]
    until = np.where(is_last, end[leg], np.clip(time_ns, start[leg], end[leg]))
    until = np.minimum.accumulate(until[::-1])[::-1]  # the clocks of host and device may differ by a little
    return np.where(is_first, start[leg], np.r_[0, until][: len(leg)]), until


def _allocations(trace: Trace) -> dict[int, Spans]:
    """Return by thread when it asks the driver for memory, or returns some."""
    calls = blocking_calls(trace)
    start, end, track = (column[calls.is_alloc] for column in (calls.start, calls.end, calls.track))
    return {number: spans(start[track == number], end[track == number]) for number in sorted_unique(track).tolist()}


def _kinds(trace: Trace) -> NDArray[np.int8]:
    """Return int8[D] of PathKind: kernel, spin wait, collective or copy."""
    is_kernel = trace.events.category[device_work(trace).rows] == Category.KERNEL
    kind = np.where(is_kernel, PathKind.KERNEL, PathKind.COPY).astype(np.int8)
    kind[is_spin_wait(trace)] = PathKind.SPIN_WAIT
    kind[is_communication(trace)] = PathKind.COLLECTIVE
    return kind


def _is_host(kind: NDArray[np.int8]) -> NDArray[np.bool_]:
    return np.asarray((kind == PathKind.HOST_OP) | (kind == PathKind.SYNC_RETURN))


def _with_names(
    trace: Trace,
    whole: Spans,
    kind: NDArray[np.int8],
    work_index: NDArray[np.int32],
    chain: NDArray[np.int32],
) -> CriticalPath:
    """Return the named segments; the host's are cut where what it does begins or ends."""
    events, work, labels = trace.events, device_work(trace), HostLabels(trace)
    gaps, allocations = unrecorded(trace), _allocations(trace)
    times_apart = (compiling(trace), *allocations.values())
    cuts = sorted_unique(host_boundaries(trace), *(times.ravel() for times in times_apart))
    cuts = sorted_unique(cuts[contains(whole[kind == PathKind.HOST_OP], cuts)], gaps.ravel())
    parts, segment = cut(whole, cuts)
    kind, work_index = kind[segment], work_index[segment]
    kind[np.isin(kind, _WAITS_FOR_THE_DEVICE) & contains(gaps, parts[:, 0])] = PathKind.UNRECORDED
    name, line = np.zeros(len(kind), np.int32), np.zeros(len(kind), np.int32)
    phase = phases(trace).main_phase_at(parts[:, 0]).astype(np.int32)
    is_host = _is_host(kind)
    if len(work):
        by_work = np.flatnonzero((work_index >= 0) & ~is_host)
        phase[by_work] = phases(trace).work_phase[work_index[by_work]]
        on_device = np.flatnonzero(np.isin(kind, _ON_DEVICE))
        ids, inverse = unique_names(events, work.rows[work_index[on_device]])
        name[on_device] = labels.numbered(tuple(events.strings[text] for text in ids.tolist()))[inverse]
    host = np.flatnonzero(is_host)
    active = active_in_chains(trace, parts[host, 0], chain[segment[host]], replay_of(trace).chains)
    name[host], line[host] = labels.on_host(active)
    loads = host[contains(loader_waits(trace), active.time_ns) & (kind[host] == PathKind.HOST_OP)]
    kind[loads], name[loads], line[loads] = PathKind.DATA_LOADER, 0, 0
    compiles = host[contains(compiling(trace), active.time_ns) & (kind[host] == PathKind.HOST_OP)]
    kind[compiles], name[compiles] = PathKind.COMPILING, 0
    without_op = np.flatnonzero((kind[host] == PathKind.HOST_OP) & (name[host] == 0))
    is_unrecorded = contains(unrecorded_backward(trace), active.time_ns[without_op])
    kind[host[without_op]] = np.where(is_unrecorded, PathKind.UNRECORDED, PathKind.PYTHON)
    name[host[without_op]] = labels.around(active.track[without_op], active.time_ns[without_op])
    for track, times in allocations.items():
        allocates = (active.track == track) & contains(times, active.time_ns)
        kind[host[allocates & np.isin(kind[host], (PathKind.HOST_OP, PathKind.PYTHON))]] = PathKind.ALLOCATION
    return CriticalPath(tuple(labels.texts), parts, kind, phase, name, line, segment)
