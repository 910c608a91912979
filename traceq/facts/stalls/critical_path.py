"""The critical path of every step: back from its end, from each start to the last thing that it waited for.

It follows the edges of the dependency graph that have no slack: from device work to the work before it, to work of
another stream, or to the host's launch; along the host to the last wait that held it up, and to the work awaited there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import DeviceWork, device_work
from traceq.facts.events.host_boundaries import host_cuts
from traceq.facts.events.name_patterns import names_of
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.stalls.dependency_graph import Graph, dependency_graph
from traceq.facts.stalls.host_labels import Labels
from traceq.facts.stalls.replay import lasts
from traceq.facts.timeline.active_thread import active_thread
from traceq.facts.timeline.data_loading import loading
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import is_communication
from traceq.intervals import Spans, contains, cut
from traceq.model import Category, Trace

__all__ = ["Back", "CriticalPath", "On", "critical_path", "edges_back", "last_work", "path_through"]

_NEVER = np.iinfo(np.int64).min
_LONG_NS = 1_000_000
_SOON_NS = 100_000


class On(IntEnum):
    """What the path leads through; the names, in lower case and with spaces, are those of the JSON."""

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
    """P pieces in order, which tile the counted steps: `parts` int64[P, 2] ns; `on` int64[P] of On; `phase` int64[P];
    `name`, `line` int64[P] into `texts`; `segment` int64[P]: pieces of one stretch share a number.
    """

    texts: tuple[str, ...]
    parts: Spans
    on: NDArray[np.int64]
    phase: NDArray[np.int64]
    name: NDArray[np.int64]
    line: NDArray[np.int64]
    segment: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Back:
    """Where the path goes from each piece of work: `to` int64[D], the work that ended last of what it waited for, -1
    for none; `over` int64[D] ns, that end; `returned`, `launched` int64[D] ns: when the host came back from waiting for
    it, and when it launched this; the least int64 where the host has no part in it. `kind` int64[D] of On; `reach`
    int64[D] ns: the latest end up to each; `held`: (end, work awaited, its end) of waits that held the host up.
    """

    to: NDArray[np.int64]
    over: NDArray[np.int64]
    returned: NDArray[np.int64]
    launched: NDArray[np.int64]
    kind: NDArray[np.int64]
    reach: NDArray[np.int64]
    held: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class _Inside:
    """Work that runs within a leg, P pairs by work: `leg`, `work` int64[P]; `runs` bool[P], not all do; of each piece
    of work `first` int64[D], the leg of its first pair, and `at` int64[D + 1], that pair.
    """

    leg: NDArray[np.int64]
    work: NDArray[np.int64]
    runs: NDArray[np.bool_]
    first: NDArray[np.int64]
    at: NDArray[np.int64]

    def pair(self, leg: NDArray[np.int64], work: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[X]: the pair of each leg and work, -1 where that work does not run within the leg."""
        pair = self.at[work] + leg - self.first[work]
        there = (work >= 0) & (pair >= self.at[work]) & (pair < self.at[work + 1])
        there[there] = self.runs[pair[there]]
        return np.where(there, pair, -1)


def critical_path(trace: Trace) -> CriticalPath:
    """The path through each counted step, from its end to its start; it adds up to them."""
    found = steps(trace)
    start = found.window[found.counted, 0]
    return path_through(trace, start, start + lasts(trace)[found.counted], np.full(len(start), -1))


def path_through(
    trace: Trace, start: NDArray[np.int64], end: NDArray[np.int64], before: NDArray[np.int64]
) -> CriticalPath:
    """The path back from each `end` to its `start`: legs int64[K] ns, disjoint and ascending, all walked at once.

    Where `before` int64[K] is a piece of work, which begins with the end of the leg, what led to that; else (-1) what
    the leg ends with.
    """
    back, work = edges_back(trace), device_work(trace)
    inside = _inside(work, start, end)
    begins, tail = _ends(work, back, inside, start, end, before)
    mine = _reached(inside, back.to, begins[begins >= 0])
    leads = np.flatnonzero(before >= 0)
    leads = leads[inside.pair(leads, before[leads]) < 0]
    of_leg, of_work = np.r_[inside.leg[mine], leads], np.r_[inside.work[mine], before[leads]]
    leg, at, on, of_work = _stretches(work, back, of_leg, of_work, tail)
    at = np.maximum(at, start[leg])
    order = np.lexsort((at, leg))
    leg, at, on, of_work = leg[order], at[order], on[order], of_work[order]
    lasts_any_time = np.r_[(at[1:] > at[:-1]) | (leg[1:] != leg[:-1]), np.ones(min(len(at), 1), np.bool_)]
    kept = np.flatnonzero(lasts_any_time & (at < end[leg]))
    leg, at, until = leg[kept], at[kept], end[leg[kept]]
    followed = np.flatnonzero(leg[1:] == leg[:-1])
    until[followed] = at[followed + 1]
    return _named(trace, np.column_stack([at, until]), on[kept], of_work[kept])


def last_work(trace: Trace, end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(int64[K]: index into DeviceWork of what a leg ends with that ends at each of some instants, or else of what its
    host waited for last, -1 if there is none; int64[K] ns: a leg that begins later has none either).
    """
    work, found = device_work(trace), np.full(len(end), -1)
    order = np.argsort(end, kind="stable")
    at = np.minimum(np.searchsorted(end[order], work.end), len(end) - 1)
    with_it = np.flatnonzero((end[order[at]] == work.end) & (work.start < work.end))[::-1]
    found[order[at[with_it]]] = with_it  # of several the first is written last
    until = end.copy()
    returned, awaited, _ = edges_back(trace).held
    by_host = np.flatnonzero(found < 0)
    at = np.searchsorted(returned, end[by_host], "right") - 1
    by_host, at = by_host[at >= 0], at[at >= 0]
    ran = work.start[awaited[at]] < end[by_host]
    by_host, at = by_host[ran], at[ran]
    found[by_host], until[by_host] = awaited[at], np.minimum(returned[at], work.end[awaited[at]])
    return found, until


@once_per_trace
def edges_back(trace: Trace) -> Back:
    """By edges without slack: another stream's work first, then the stream's own, then the launch."""
    graph, work = dependency_graph(trace), device_work(trace)
    edges, size = graph.awaits, len(work)
    to, over = np.full(size, -1), np.full(size, _NEVER)
    returned, launched = np.full(size, _NEVER), np.full(size, _NEVER)
    own = (graph.by_stream == 0) & (graph.before >= 0)
    to[own] = graph.before[own]
    binding = np.flatnonzero(graph.by_await == 0)
    to[edges.work[binding]] = edges.on[binding]
    over[to >= 0] = np.minimum(work.end[to], work.start)[to >= 0]
    by_launch = np.flatnonzero((to < 0) & (graph.by_launch == 0))
    launched[by_launch] = trace.events.ts[work.call[by_launch]]
    held = _held(trace, graph, work)
    last = np.searchsorted(held[0], launched[by_launch], "right") - 1
    there = last >= 0
    to[by_launch[there]] = held[1][last[there]]
    over[by_launch[there]] = held[2][last[there]]
    returned[by_launch[there]] = held[0][last[there]]
    return Back(to, over, returned, launched, _kinds(trace), np.maximum.accumulate(work.end), held)


def _held(
    trace: Trace, graph: Graph, work: DeviceWork
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Waits that held the host up, by end: (end, work awaited, its end)."""
    holds = graph.holds
    binding = np.flatnonzero((holds.by_work == 0) & (holds.by_host[holds.hold] > 0))
    silent_end, silent_on = _silent_waits(trace, work)
    end, on = np.r_[holds.end[holds.hold[binding]], silent_end], np.r_[holds.on[binding], silent_on]
    order = np.argsort(end, kind="stable")
    end, on = end[order], on[order]
    return end, on, np.minimum(work.end[on], end)


def _silent_waits(trace: Trace, work: DeviceWork) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(end, work awaited) of waits that no row shows, as torch's allocator waits for events before it frees.

    The main thread calls nothing for long, while a collective runs nearly all that time, and goes on once it is over.
    """
    events, talks = trace.events, np.flatnonzero(is_communication(trace))
    calls = events.rows(Category.RUNTIME)
    calls = calls[tracks(trace)[calls] == main_track(trace)]
    calls = calls[np.argsort(events.ts[calls], kind="stable")]
    if len(talks) == 0 or len(calls) == 0:
        return talks[:0], talks[:0]
    start, end = np.maximum.accumulate(events.end[calls])[:-1], events.ts[calls][1:]
    talks = talks[np.argsort(work.end[talks], kind="stable")]
    at = np.searchsorted(work.end[talks], end, "right") - 1
    on = talks[at]
    soon = (at >= 0) & (end - work.end[on] <= _SOON_NS) & (end - start >= _LONG_NS)
    waits = soon & (work.start[on] - start <= (end - start) // 10)
    return end[waits], on[waits]


def _inside(work: DeviceWork, start: NDArray[np.int64], end: NDArray[np.int64]) -> _Inside:
    """Work within legs [start, end) int64[K] ns, by start."""
    first = np.searchsorted(np.maximum.accumulate(end), work.start, "right")
    num = np.maximum(np.searchsorted(start, work.end, "left") - first, 0)
    at = np.r_[0, np.cumsum(num)]
    of_work = np.repeat(np.arange(len(work)), num)
    leg = np.arange(len(of_work)) - (at[:-1] - first)[of_work]
    return _Inside(leg, of_work, work.start[of_work] < end[leg], first, at)


_Tail = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""(leg, ns, On) of the stretches between the last work on the path and the end of a leg."""


def _ends(
    work: DeviceWork,
    back: Back,
    inside: _Inside,
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    before: NDArray[np.int64],
) -> tuple[NDArray[np.int64], _Tail]:
    """(the pair with which the path of each leg ends, -1 without one; the host's stretches behind it).

    What led to the work `before`, if that is given; else the work that ends with the leg. Where none does the host is
    the last, and before it what it waited for last, if that was within the leg.
    """
    last = np.flatnonzero(inside.runs & (work.end[inside.work] == end[inside.leg]))[::-1]
    pair = np.full(len(end), -1)
    pair[inside.leg[last]] = last  # of several the first is written last, and stays
    leads = np.flatnonzero(before >= 0)
    own = inside.pair(leads, before[leads])
    pair[leads] = np.where(own >= 0, own, inside.pair(leads, back.to[before[leads]]))
    returned, awaited, over = back.held
    by_host = np.flatnonzero((pair < 0) & (before < 0))
    at = np.searchsorted(returned, end[by_host], "right") - 1
    waited = at >= 0
    waited[waited] = returned[at[waited]] > start[by_host[waited]]
    alone, by_host, at = by_host[~waited], by_host[waited], at[waited]
    pair[by_host] = inside.pair(by_host, awaited[at])
    tail = (
        np.r_[by_host, by_host, alone],
        np.r_[over[at], returned[at], start[alone]],
        np.repeat([int(On.SYNC_RETURN), int(On.HOST_OP), int(On.HOST_OP)], [len(at), len(at), len(alone)]),
    )
    return pair, tail


def _reached(inside: _Inside, to: NDArray[np.int64], begins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs, ascending, that the paths reach from those that they begin with, by doubling the length of each jump."""
    onward = inside.pair(inside.leg, to[inside.work])
    jump = np.where(onward >= 0, onward, np.arange(len(onward)))
    reached = np.zeros(len(jump), np.bool_)
    reached[begins] = True
    for _ in range(int(np.bincount(inside.leg).max(initial=0)).bit_length()):
        reached[jump[reached]] = True
        jump = jump[jump]
    return np.flatnonzero(reached)


def _stretches(
    work: DeviceWork, back: Back, leg: NDArray[np.int64], mine: NDArray[np.int64], tail: _Tail
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(leg, begin ns, On, the work that runs or comes next, -1 for the host's last) of each stretch of the path; of
    those that begin together the last one counts.
    """
    launched = back.launched[mine] > _NEVER
    by_host, queued = np.flatnonzero(launched), np.flatnonzero(~launched)
    returned = by_host[back.returned[mine[by_host]] > _NEVER]
    is_known = back.to[mine[queued]] >= 0
    stretches = (
        (back.over, On.SYNC_RETURN, returned),
        (back.returned, On.HOST_OP, by_host),
        (back.launched, On.LAUNCH_LATENCY, by_host),
        (back.over, On.QUEUE, queued[is_known]),
        (back.over, On.BEFORE, queued[~is_known]),
        *((work.start, kind, np.flatnonzero(back.kind[mine] == kind)) for kind in (On.KERNEL, On.COLLECTIVE, On.COPY)),
    )
    return (
        np.concatenate([tail[0], *(leg[rows] for _, _, rows in stretches)]),
        np.concatenate([tail[1], *(begin[mine[rows]] for begin, _, rows in stretches)]),
        np.concatenate([tail[2], *(np.full(len(rows), int(on)) for _, on, rows in stretches)]),
        np.concatenate([np.full(len(tail[0]), -1), *(mine[rows] for _, _, rows in stretches)]),
    )


def _kinds(trace: Trace) -> NDArray[np.int64]:
    category = trace.events.category[device_work(trace).rows]
    return np.where(is_communication(trace), On.COLLECTIVE, np.where(category == Category.KERNEL, On.KERNEL, On.COPY))


def _named(trace: Trace, whole: Spans, on: NDArray[np.int64], work_of: NDArray[np.int64]) -> CriticalPath:
    """The stretches with names; those of the host cut where an op, an annotation or a Python frame begins or ends."""
    events, work, labels = trace.events, device_work(trace), Labels(trace)
    cuts = host_cuts(trace)
    parts, segment = cut(whole, cuts[contains(whole[on == On.HOST_OP], cuts)])
    on, work_of = on[segment], work_of[segment]
    name, line = np.zeros(len(on), np.int64), np.zeros(len(on), np.int64)
    phase = phases(trace).at(parts[:, 0])
    is_host = (on == On.HOST_OP) | (on == On.SYNC_RETURN)
    if len(work):
        ahead = np.flatnonzero((work_of >= 0) & ~is_host)
        phase[ahead] = phases(trace).of_work[work_of[ahead]]
        on_device = np.flatnonzero((on == On.KERNEL) | (on == On.COLLECTIVE) | (on == On.COPY))
        ids, inverse = names_of(events, work.rows[work_of[on_device]])
        name[on_device] = labels.numbered(tuple(events.strings[at] for at in ids.tolist()))[inverse]
    host = np.flatnonzero(is_host)
    turns = active_thread(trace, parts[host, 0])
    name[host], line[host] = labels.on_host(turns, np.arange(len(host)))
    loads = host[contains(loading(trace), turns.at) & (on[host] == On.HOST_OP)]
    on[loads], name[loads], line[loads] = On.DATA_LOADER, 0, 0
    between = np.flatnonzero((on[host] == On.HOST_OP) & (name[host] == 0))
    on[host[between]] = On.PYTHON
    name[host[between]] = labels.around(turns.track[between], turns.at[between])
    return CriticalPath(tuple(labels.texts), parts, on, phase, name, line, segment)
