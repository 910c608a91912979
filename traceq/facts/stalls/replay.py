"""Replay: step durations predicted by the dependency graph without some of the host's waits."""

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

__all__ = ["replay", "saved_per_step", "step_durations", "unexplained_time"]

_HOST = 0
_MAX_KEPT_CELLS = 16
"""Limit on extra cells for ends that are awaited after their stream got more work."""

_EXPLAINED_NS = 30_000
"""Delay after the last known dependency that launch latency and clock skew explain."""

_OP, _AWAIT, _KEEP, _HOLD = range(4)
"""Order of instructions at one position of the launch order."""


def replay(trace: Trace, removed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return int64[R, K] ns by which each of K steps becomes shorter in R cases.

    `removed` bool[R, H]: host waits removed in each case. A removed wait gives its `saves` back to the host; a copy
    stays but nothing waits for it. Everything else keeps its duration, delay and order.
    """
    return _saved_time(trace, _tape(trace), removed)


def saved_per_step(trace: Trace, removed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return int64[R] ns by which the mean counted step becomes shorter; at most the blocked time removed from it.

    Waits outside the counted steps stay: their savings would be credited to steps in which nothing was removed.
    """
    all_steps = steps(trace)
    inside = span_index(all_steps.host[all_steps.counted], dependency_graph(trace).host_waits.start) >= 0
    mean: NDArray[np.float64] = replay(trace, removed & inside)[:, all_steps.counted].mean(axis=1)
    return np.rint(mean).astype(np.int64)


def unexplained_time(trace: Trace) -> NDArray[np.int64]:
    """Return int64[K] ns of each step that no known dependency explains.

    Nothing is removed: this is how much shorter the step is when each delay after the last dependency is at most 30 us.
    """
    graph = dependency_graph(trace)
    unexplained = np.maximum(graph.delay - _EXPLAINED_NS, 0)
    none_removed = np.zeros((1, len(graph.host_waits)), np.bool_)
    short: NDArray[np.int64] = _saved_time(trace, _build(graph, unexplained), none_removed)[0]
    return short


def step_durations(trace: Trace) -> NDArray[np.int64]:
    """Return int64[K] ns: the duration of each step as replay counts it.

    That is its window; where the window ends with the host, it extends to the end of the work launched in the step.
    """
    all_steps, graph = steps(trace), dependency_graph(trace)
    ends = all_steps.window[:, 1]
    if not all_steps.by_device and len(device_work(trace)):
        launched = np.searchsorted(np.sort(graph.launched), ends, "left")
        ends = np.maximum(_host_ends(trace), _last_ends(trace, launched).max(axis=1))
    return ends - all_steps.window[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class _PlacedTape:
    """Tape with `key` int64[I], ascending: launch order, kind; `wait_index` int64[H]: each wait's last instruction."""

    tape: MaxPlusTape
    key: NDArray[np.int64]
    wait_index: NDArray[np.int64]


@once_per_trace
def _tape(trace: Trace) -> _PlacedTape:
    return _build(dependency_graph(trace), np.zeros(len(device_work(trace)), np.int64))


def _build(graph: Graph, removed_delay: NDArray[np.int64]) -> _PlacedTape:
    """Return the graph as instructions, with each delay shortened by `removed_delay` int64[D] ns."""
    waits, edges, own_cell = graph.host_waits, graph.awaits, 1 + graph.stream
    wait_order = np.searchsorted(np.sort(graph.launched), waits.end, "left") - 1
    needed_at = np.r_[graph.order[edges.work], wait_order[waits.wait]]
    sources = _source_cells(graph, np.r_[edges.on, waits.work], needed_at)
    edge_cell, wait_cell = sources.cell[: len(edges.on)], sources.cell[len(edges.on) :]
    lost_slack = np.zeros(
        len(own_cell), np.int64
    )  # no cell for an edge: its work keeps its distance to the other edges
    without_cell = edges.work[edge_cell < 0]
    lost_slack[without_cell] = np.minimum(graph.stream_slack, graph.launch_slack)[without_cell]
    host_slack = waits.host_slack.copy()
    host_slack[waits.wait[wait_cell < 0]] = 0
    shift, await_lag = removed_delay - lost_slack, graph.await_slack + removed_delay[edges.work]
    parts = (
        _instructions(graph.order, _OP, own_cell, _HOST, graph.stream_slack + shift, graph.launch_slack + shift),
        _instructions(graph.order[edges.work], _AWAIT, own_cell[edges.work], edge_cell, 0, await_lag),
        _instructions(graph.order[sources.kept_work], _KEEP, sources.kept_cell, own_cell[sources.kept_work], FAR, 0),
        _instructions(wait_order, _HOLD, _HOST, _HOST, host_slack, FAR),
        _instructions(wait_order[waits.wait], _HOLD, _HOST, wait_cell, 0, waits.work_slack),
    )
    key, target, source, keep, lag = np.concatenate(parts, axis=1)
    lag = np.where(source >= 0, lag, FAR)
    num_others = len(key) - len(waits) - len(waits.wait)
    no_switch, no_instead = np.zeros(num_others, np.int64), np.zeros(len(waits.wait), np.int64)
    switch = np.r_[no_switch + NEVER_OFF, np.arange(len(waits)), waits.wait]
    instead = np.r_[no_switch, waits.saves, no_instead]
    by_time = num_others + np.lexsort((switch[num_others:], np.r_[waits.end, waits.end[waits.wait]]))
    order = np.r_[:num_others, by_time]  # keys of the others are unique, in sorted runs
    order = order[np.argsort(key[order], kind="stable")]
    wait_index = np.empty(len(waits), np.int64)
    last = np.flatnonzero(switch[order] != NEVER_OFF)
    wait_index[switch[order][last]] = last
    columns = (target, np.maximum(source, 0), np.minimum(keep, FAR), np.minimum(lag, FAR), switch, instead)
    tape = MaxPlusTape(1 + graph.num_streams + sources.num_cells, *(column[order] for column in columns))
    return _PlacedTape(tape, key[order], wait_index)


def _instructions(order: NDArray[np.int64], rank: int, *columns: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Return int64[5, len(order)]: key, target, source, keep, lag."""
    return np.stack([4 * order + rank, *(np.broadcast_to(column, order.shape) for column in columns)])


@dataclass(frozen=True, slots=True, eq=False)
class _Sources:
    """Cells that hold the end of some work when it is needed.

    `cell` int64, -1 where none can; `kept_work` int64 into DeviceWork: work whose end is copied to the extra cell
    `kept_cell`; `num_cells`: number of extra cells.
    """

    cell: NDArray[np.int64]
    kept_work: NDArray[np.int64]
    kept_cell: NDArray[np.int64]
    num_cells: int


def _source_cells(graph: Graph, work: NDArray[np.int64], needed_at: NDArray[np.int64]) -> _Sources:
    """Return the cells with the ends of `work` int64 into DeviceWork or -1, at positions `needed_at` of launch order.

    That is the stream's cell until more work is launched on it, and an extra cell after that.
    """
    if len(graph.order) == 0:
        return _Sources(np.full(len(work), -1), work[:0], work[:0], 0)
    following = np.full(len(graph.order), np.iinfo(np.int64).max)
    has_before = np.flatnonzero(graph.before >= 0)
    following[graph.before[has_before]] = graph.order[has_before]
    is_launched = (work >= 0) & (graph.order[work] <= needed_at)
    is_last = is_launched & (following[work] > needed_at)
    later = np.flatnonzero(is_launched & ~is_last)
    later = later[np.argsort(graph.order[work[later]], kind="stable")]
    num_cells = _cells_needed(graph.order[work[later]], needed_at[later])
    later = later[: len(later) if num_cells else 0]
    cell = np.where(is_last, 1 + graph.stream[work], -1)
    cell[later] = 1 + graph.num_streams + np.arange(len(later)) % max(num_cells, 1)
    return _Sources(cell, work[later], cell[later], num_cells)


def _cells_needed(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    """Return how many cells, used in turn, serve intervals sorted by begin without overlap; 0 if too many."""
    for num in range(1, _MAX_KEPT_CELLS + 1):
        if (begins[num:] > ends[:-num]).all():
            return num if len(begins) else 0
    return 0


def _saved_time(trace: Trace, placed: _PlacedTape, removed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return int64[R, K] ns by which each step becomes shorter."""
    graph, all_steps = dependency_graph(trace), steps(trace)
    time_ns = np.r_[all_steps.window[0, 0], all_steps.host[:, 1]] if all_steps.by_device else all_steps.window.ravel()
    launched = np.searchsorted(np.sort(graph.launched), time_ns, "left")
    after_work = np.searchsorted(placed.key, 4 * launched - 1, "left")
    num_waits = np.searchsorted(np.sort(graph.host_waits.end), time_ns, "right")
    after_host = np.maximum(after_work, np.r_[0, np.sort(placed.wait_index) + 1][num_waits])
    cells = run(placed.tape, removed, np.r_[after_host, after_work])
    shift, on_device = cells[: len(time_ns), _HOST], cells[len(time_ns) :, 1 : 1 + graph.num_streams]
    if all_steps.by_device:
        shift = np.concatenate([shift[:1], _end_shift(trace, launched[1:], on_device[1:])])
        return (shift[:-1] - shift[1:]).T
    shift[1::2] = _later_end_shift(trace, shift[1::2], launched[1::2], on_device[1::2])
    return (shift[::2] - shift[1::2]).T


def _end_shift(trace: Trace, launched: NDArray[np.int64], cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[P, R] ns: shift of the end of the first `launched` int64[P] device operations.

    `cells` int64[P, streams, R]: shifts of the streams' last ends.
    """
    ends = _last_ends(trace, launched)
    shifted: NDArray[np.int64] = (ends[:, :, None] + cells).max(axis=1) - ends.max(axis=1)[:, None]
    return shifted


def _later_end_shift(
    trace: Trace, on_host: NDArray[np.int64], launched: NDArray[np.int64], cells: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return int64[K, R] ns: shift of each step's end: of the host or, if later, of the work launched in it."""
    if len(device_work(trace)) == 0:
        return on_host
    host_end, work_end = _host_ends(trace), _last_ends(trace, launched)
    observed = np.maximum(host_end, work_end.max(axis=1))[:, None]
    replayed = np.maximum(host_end[:, None] + on_host, (work_end[:, :, None] + cells).max(axis=1))
    shifted: NDArray[np.int64] = replayed - observed
    return shifted


def _host_ends(trace: Trace) -> NDArray[np.int64]:
    """Return int64[K] ns: when the host ends each step; in a trace without step marks, at its last row."""
    events, ends = trace.events, steps(trace).window[:, 1]
    if steps(trace).marked:
        return ends
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION, Category.RUNTIME, Category.PYTHON)
    last = events.end[rows].max(initial=np.iinfo(np.int64).min)
    bounded: NDArray[np.int64] = np.minimum(ends, last)
    return bounded


def _last_ends(trace: Trace, launched: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[P, streams] ns: end of the last of the first `launched` device operations on each stream."""
    graph, work = dependency_graph(trace), device_work(trace)
    ends = np.full((len(launched), graph.num_streams), -FAR)
    for number in range(graph.num_streams):
        on_stream = np.flatnonzero(graph.stream == number)
        on_stream = on_stream[np.argsort(graph.order[on_stream])]
        count = np.searchsorted(graph.order[on_stream], launched, "left")
        ends[count > 0, number] = work.end[on_stream[count[count > 0] - 1]]
    return ends
