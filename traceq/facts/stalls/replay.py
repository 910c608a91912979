"""The step that would be: the dependency graph re-timed without some of the host's waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.memo import once_per_trace
from traceq.facts.stalls.dependency_graph import Graph, dependency_graph
from traceq.facts.stalls.max_plus import FAR, NEVER_OFF, MaxPlusTape, run
from traceq.facts.timeline.steps import steps
from traceq.intervals import span_index
from traceq.model import Category, Trace

__all__ = ["lasts", "replay", "replay_as_is", "saved_a_step"]

_HOST = 0
_MOST_KEPT = 16
"""Cells for ends that are awaited when their stream already has more work."""

_EXPLAINED_NS = 30_000
"""A delay after the last known dependency that needs no further cause: launch latency, and clocks that disagree."""

_OP, _AWAIT, _KEEP, _HOLD = range(4)
"""What comes first among instructions at one place of the launch order."""


def replay(trace: Trace, removed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """int64[R, K] ns by which each step becomes shorter, in R cases; `removed` bool[R, H]: the graph's holds that go.

    A hold that goes gives its `saves` back to the host; a copy stays, and nobody waits for it. All else keeps its
    duration, its delay and its order.
    """
    return _saved(trace, _tape(trace), removed)


def saved_a_step(trace: Trace, removed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """int64[R] ns by which a counted step becomes shorter in the mean; never more than what goes of it was blocked.

    Holds outside the counted steps stay: their head start would be booked on steps in which nothing went.
    """
    found = steps(trace)
    inside = span_index(found.host[found.counted], dependency_graph(trace).holds.start) >= 0
    mean: NDArray[np.float64] = replay(trace, removed & inside)[:, found.counted].mean(axis=1)
    return np.rint(mean).astype(np.int64)


def replay_as_is(trace: Trace) -> NDArray[np.int64]:
    """int64[K] ns by which the graph alone falls short of each step: time that no known dependency explains.

    Nothing is removed; what a start lags behind its last dependency counts up to 30 us.
    """
    graph = dependency_graph(trace)
    unexplained = np.maximum(graph.delay - _EXPLAINED_NS, 0)
    short: NDArray[np.int64] = _saved(trace, _build(graph, unexplained), np.zeros((1, len(graph.holds)), np.bool_))[0]
    return short


def lasts(trace: Trace) -> NDArray[np.int64]:
    """int64[K] ns from the start to the end of each step as replay counts it: its window, but where that ends with the
    host and work launched in it runs longer, until that is done.
    """
    found, graph = steps(trace), dependency_graph(trace)
    ends = found.window[:, 1]
    if not found.by_device and len(device_work(trace)):
        launched = np.searchsorted(np.sort(graph.turn), ends, "left")
        ends = np.maximum(_host_ends(trace), _last_ends(trace, launched).max(axis=1))
    return ends - found.window[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """A tape; `key` int64[I], ascending: launch order and rank; `hold_at` int64[H]: each hold's last instruction."""

    tape: MaxPlusTape
    key: NDArray[np.int64]
    hold_at: NDArray[np.int64]


@once_per_trace
def _tape(trace: Trace) -> _Placed:
    return _build(dependency_graph(trace), np.zeros(len(device_work(trace)), np.int64))


def _build(graph: Graph, sooner: NDArray[np.int64]) -> _Placed:
    """The graph as instructions; `sooner` int64[D] ns is left out of each delay."""
    holds, edges, own = graph.holds, graph.awaits, 1 + graph.stream
    hold_place = np.searchsorted(np.sort(graph.turn), holds.end, "left") - 1
    asked = np.r_[graph.place[edges.work], hold_place[holds.hold]]
    source = _sources(graph, np.r_[edges.on, holds.on], asked)
    of_edge, of_hold = source.cell[: len(edges.on)], source.cell[len(edges.on) :]
    loose = np.zeros(len(own), np.int64)  # an edge that no cell can hold: its work keeps its distance to the others
    lost = edges.work[of_edge < 0]
    loose[lost] = np.minimum(graph.by_stream, graph.by_launch)[lost]
    by_host = holds.by_host.copy()
    by_host[holds.hold[of_hold < 0]] = 0
    parts = (
        _rows(graph.place, _OP, own, _HOST, graph.by_stream + sooner - loose, graph.by_launch + sooner - loose),
        _rows(graph.place[edges.work], _AWAIT, own[edges.work], of_edge, 0, graph.by_await + sooner[edges.work]),
        _rows(graph.place[source.kept], _KEEP, source.kept_in, own[source.kept], FAR, 0),
        _rows(hold_place, _HOLD, _HOST, _HOST, by_host, FAR),
        _rows(hold_place[holds.hold], _HOLD, _HOST, of_hold, 0, holds.by_work),
    )
    key, target, from_, keep, lag = np.concatenate(parts, axis=1)
    lag = np.where(from_ >= 0, lag, FAR)
    first_hold = len(key) - len(holds) - len(holds.hold)
    none, of_waits = np.zeros(first_hold, np.int64), np.zeros(len(holds.hold), np.int64)
    hold = np.r_[none + NEVER_OFF, np.arange(len(holds)), holds.hold]
    instead = np.r_[none, holds.saves, of_waits]
    of_holds = first_hold + np.lexsort((hold[first_hold:], np.r_[holds.end, holds.end[holds.hold]]))
    order = np.r_[:first_hold, of_holds]  # others have no equals, and runs of them are in order already
    order = order[np.argsort(key[order], kind="stable")]
    hold_at = np.empty(len(holds), np.int64)
    last = np.flatnonzero(hold[order] != NEVER_OFF)
    hold_at[hold[order][last]] = last
    columns = (target, np.maximum(from_, 0), np.minimum(keep, FAR), np.minimum(lag, FAR), hold, instead)
    tape = MaxPlusTape(1 + graph.num_streams + source.num_cells, *(column[order] for column in columns))
    return _Placed(tape, key[order], hold_at)


def _rows(place: NDArray[np.int64], rank: int, *columns: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """int64[5, len(place)]: key, target, source, keep, lag."""
    return np.stack([4 * place + rank, *(np.broadcast_to(column, place.shape) for column in columns)])


@dataclass(frozen=True, slots=True, eq=False)
class _Sources:
    """Cells that hold the end of some work when it is asked for: `cell` int64, -1 where none can; `kept` int64 into
    DeviceWork, work whose end is kept `kept_in` a cell of its own, of which there are `num_cells`.
    """

    cell: NDArray[np.int64]
    kept: NDArray[np.int64]
    kept_in: NDArray[np.int64]
    num_cells: int


def _sources(graph: Graph, on: NDArray[np.int64], asked: NDArray[np.int64]) -> _Sources:
    """`on` int64 into DeviceWork or -1, needed at the place `asked` of the launch order.

    The stream's own cell while nothing else is launched on it, else one that keeps the end until then.
    """
    if len(graph.place) == 0:
        return _Sources(np.full(len(on), -1), on[:0], on[:0], 0)
    following = np.full(len(graph.place), np.iinfo(np.int64).max)
    behind = np.flatnonzero(graph.before >= 0)
    following[graph.before[behind]] = graph.place[behind]
    known = (on >= 0) & (graph.place[on] <= asked)
    is_last = known & (following[on] > asked)
    later = np.flatnonzero(known & ~is_last)
    later = later[np.argsort(graph.place[on[later]], kind="stable")]
    num_cells = _cells_needed(graph.place[on[later]], asked[later])
    later = later[: len(later) if num_cells else 0]
    cell = np.where(is_last, 1 + graph.stream[on], -1)
    cell[later] = 1 + graph.num_streams + np.arange(len(later)) % max(num_cells, 1)
    return _Sources(cell, on[later], cell[later], num_cells)


def _cells_needed(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    """Cells that can be taken in turn by stretches sorted by begin without one being taken twice; 0 if too many."""
    for num in range(1, _MOST_KEPT + 1):
        if (begins[num:] > ends[:-num]).all():
            return num if len(begins) else 0
    return 0


def _saved(trace: Trace, placed: _Placed, removed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """int64[R, K] ns: how much shorter each step's window becomes."""
    graph, found = dependency_graph(trace), steps(trace)
    at = np.r_[found.window[0, 0], found.host[:, 1]] if found.by_device else found.window.ravel()
    launched = np.searchsorted(np.sort(graph.turn), at, "left")
    by_work = np.searchsorted(placed.key, 4 * launched - 1, "left")
    passed = np.searchsorted(np.sort(graph.holds.end), at, "right")
    by_host = np.maximum(by_work, np.r_[0, np.sort(placed.hold_at) + 1][passed])
    cells = run(placed.tape, removed, np.r_[by_host, by_work])
    shift, on_device = cells[: len(at), _HOST], cells[len(at) :, 1 : 1 + graph.num_streams]
    if found.by_device:
        shift = np.concatenate([shift[:1], _end_shift(trace, launched[1:], on_device[1:])])
        return (shift[:-1] - shift[1:]).T
    shift[1::2] = _later_end_shift(trace, shift[1::2], launched[1::2], on_device[1::2])
    return (shift[::2] - shift[1::2]).T


def _end_shift(trace: Trace, launched: NDArray[np.int64], cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[P, R] ns: shift of the end of the first `launched` int64[P] pieces of work.

    `cells` int64[P, streams, R]: shifts of the streams' last ends.
    """
    ends = _last_ends(trace, launched)
    shifted: NDArray[np.int64] = (ends[:, :, None] + cells).max(axis=1) - ends.max(axis=1)[:, None]
    return shifted


def _later_end_shift(
    trace: Trace, on_host: NDArray[np.int64], launched: NDArray[np.int64], cells: NDArray[np.int64]
) -> NDArray[np.int64]:
    """int64[K, R] ns: shift of the end of each step: of the host's, or of the work launched in it if that is later."""
    if len(device_work(trace)) == 0:
        return on_host
    host_end, work_end = _host_ends(trace), _last_ends(trace, launched)
    now = np.maximum(host_end, work_end.max(axis=1))[:, None]
    then = np.maximum(host_end[:, None] + on_host, (work_end[:, :, None] + cells).max(axis=1))
    shifted: NDArray[np.int64] = then - now
    return shifted


def _host_ends(trace: Trace) -> NDArray[np.int64]:
    """int64[K] ns: when the host is done with each step; of a whole trace, with its last row."""
    events, ends = trace.events, steps(trace).window[:, 1]
    if steps(trace).marked:
        return ends
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION, Category.RUNTIME, Category.PYTHON)
    last = events.end[rows].max(initial=np.iinfo(np.int64).min)
    bounded: NDArray[np.int64] = np.minimum(ends, last)
    return bounded


def _last_ends(trace: Trace, launched: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[P, streams] ns: end of the last of the first `launched` pieces of work on each stream."""
    graph, work = dependency_graph(trace), device_work(trace)
    ends = np.full((len(launched), graph.num_streams), -FAR)
    for number in range(graph.num_streams):
        mine = np.flatnonzero(graph.stream == number)
        mine = mine[np.argsort(graph.place[mine])]
        at = np.searchsorted(graph.place[mine], launched, "left")
        ends[at > 0, number] = work.end[mine[at[at > 0] - 1]]
    return ends
