"""Replays of CUDA graphs: the work that each launched, and the calls that were captured for it."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.frozen import frozen
from traceq.intervals import Spans, sorted_unique, span_index
from traceq.model import Category, Trace

__all__ = ["GraphReplays", "ReplayTimes", "capture_spans", "graph_replays", "replay_times"]

_REPLAY = re.compile(r"GraphLaunch")
_BEGIN, _END = (re.compile(rf"^(cuda|hip|cu)Stream{word}Capture") for word in ("Begin", "End"))
_CAPTURED = re.compile(r"^(cuda|hip|cu)\w*(LaunchKernel|LaunchCooperativeKernel|Memcpy\w*Async|Memset\w*Async)")
"""Calls that become a node of the graph while it is captured."""


@frozen(eq=False)
class GraphReplays:
    """Device work that replays of graphs launched.

    `replayed` bool[D]; `captured` int64[D], the row of Events of the call that was captured for this node of its graph,
    -1 for other work and where the trace does not show the capture, or leaves open which one it is.
    """

    replayed: NDArray[np.bool_]
    captured: NDArray[np.int64]

    def calls(self, launching: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[D]: the captured call of each piece of work, else its launching call."""
        return np.where(self.captured >= 0, self.captured, launching)


@frozen
class ReplayTimes:
    """Sums over device work, ns: of all, of what `num` replays launched, and of its part whose capture is shown."""

    gpu_ns: int
    replay_ns: int
    captured_ns: int
    num: int


@frozen(eq=False)
class _Nodes:
    """Nodes of K graphs in order: graph `index` has `rows[first[index]:first[index] + size[index]]`; `ts` int64[K]."""

    rows: NDArray[np.int64]
    size: NDArray[np.int64]
    ts: NDArray[np.int64]

    @property
    def first(self) -> NDArray[np.int64]:
        return np.cumsum(self.size) - self.size


@once_per_trace
def graph_replays(trace: Trace) -> GraphReplays:
    """Return the work of replays, with its captured calls where the capture is in the trace, too.

    Nodes run in the order of their capture, on one stream. A replay belongs to a capture if all replays follow each
    other as the captures did, with as many nodes each, or if no other capture has as many nodes; and if its replays run
    the same kernels.
    """
    work = device_work(trace)
    replayed = matching(trace.events, work.call, _REPLAY) & work.linked
    captured = np.full(len(work), -1)
    captures = _captures(trace) if replayed.any() else None
    if captures is not None and len(captures.size):
        replays, index = _replays(trace, np.flatnonzero(replayed))
        graph = _captures_of(trace, captures, replays)
        nodes = np.repeat(captures.first[graph] - replays.first, replays.size) + np.arange(len(index))
        is_linked = np.repeat(graph >= 0, replays.size)
        captured[index[is_linked]] = captures.rows[nodes[is_linked]]
    return GraphReplays(replayed, captured)


def replay_times(trace: Trace) -> ReplayTimes:
    """Return how much of the device's time replays launch."""
    work, replays = device_work(trace), graph_replays(trace)
    ns, calls = work.end - work.start, sorted_unique(work.call[replays.replayed])
    replay_ns, captured_ns = ns[replays.replayed].sum(), ns[replays.captured >= 0].sum()
    return ReplayTimes(int(ns.sum()), int(replay_ns), int(captured_ns), len(calls))


@once_per_trace
def capture_spans(trace: Trace) -> Spans:
    """Return when CUDA graphs are captured, by begin; captures of several threads may overlap."""
    events = trace.events
    calls = events.rows(Category.RUNTIME)
    calls = calls[np.argsort(events.ts[calls], kind="stable")]
    begins, ends = (calls[matching(events, calls, pattern)] for pattern in (_BEGIN, _END))
    windows = [
        (begin_ns, end_ns)
        for number in sorted_unique(tracks(trace)[begins]).tolist()
        for begin_ns, end_ns in _windows(*(events.ts[rows[tracks(trace)[rows] == number]] for rows in (begins, ends)))
    ]
    return np.array(sorted(windows), np.int64).reshape(-1, 2)


def _captures(trace: Trace) -> _Nodes:
    """Return the captures that launch anything, each with the calls that it records; `ts` is when it ended.

    Calls of other threads count, as backward launches on that of the autograd engine; not where captures overlap.
    """
    events, spans = trace.events, capture_spans(trace)
    calls = events.rows(Category.RUNTIME)
    calls = calls[np.argsort(events.ts[calls], kind="stable")]
    if (spans[1:, 0] < spans[:-1, 1]).any():
        return _Nodes(calls[:0], calls[:0], calls[:0])
    launches = calls[matching(events, calls, _CAPTURED)]
    launches = launches[~np.isin(launches, device_work(trace).call)]
    capture = span_index(spans, events.ts[launches])
    size = np.bincount(capture[capture >= 0], minlength=len(spans))
    return _Nodes(launches[capture >= 0], size[size > 0], spans[size > 0, 1])


def _windows(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return (begin, end) ns of the captures of one thread, in which a begin and its end follow each other."""
    following = np.searchsorted(ends, begins)
    has_end = following < len(ends)
    return list(zip(begins[has_end].tolist(), ends[following[has_end]].tolist(), strict=True))


def _replays(trace: Trace, index: NDArray[np.int64]) -> tuple[_Nodes, NDArray[np.int64]]:
    """Return the replays in order, and these indices of DeviceWork by (replay, start); `ts` is when it is launched.

    A replay on several streams has no order of its nodes: it is left out.
    """
    work, events = device_work(trace), trace.events
    calls, replay = np.unique(work.call[index], return_inverse=True)
    lowest, highest = np.full(len(calls), np.iinfo(np.int64).max), np.full(len(calls), -1)
    np.minimum.at(lowest, replay, work.stream[index])
    np.maximum.at(highest, replay, work.stream[index])
    kept = np.flatnonzero(lowest == highest)
    kept = kept[np.argsort(events.ts[calls[kept]], kind="stable")]
    place = np.full(len(calls), -1)
    place[kept] = np.arange(len(kept))
    order = np.argsort(place[replay], kind="stable")
    order = order[place[replay[order]] >= 0]
    size = np.bincount(place[replay[order]], minlength=len(kept))
    return _Nodes(work.rows[index[order]], size, events.ts[calls[kept]]), index[order]


def _captures_of(trace: Trace, captures: _Nodes, replays: _Nodes) -> NDArray[np.int64]:
    """Return which capture each replay runs: int64[R], -1 where that is not certain."""
    in_turn = np.arange(len(replays.size)) % len(captures.size)
    if (
        len(replays.size) >= len(captures.size)
        and not _repeats(captures.size)
        and np.array_equal(captures.size[in_turn], replays.size)
        and (captures.ts[in_turn] <= replays.ts).all()
        and _run_the_same(trace, replays, int(captures.size.sum()))
    ):
        return in_turn
    graph = np.full(len(replays.size), -1)
    for capture in np.flatnonzero(np.bincount(captures.size)[captures.size] == 1).tolist():
        same = np.flatnonzero(replays.size == captures.size[capture])
        nodes = (replays.first[same][:, None] + np.arange(captures.size[capture])).ravel()
        alike = _Nodes(replays.rows[nodes], replays.size[same], replays.ts[same])
        if (alike.ts >= captures.ts[capture]).all() and _run_the_same(trace, alike, int(captures.size[capture])):
            graph[same] = capture
    return graph


def _repeats(size: NDArray[np.int64]) -> bool:
    """Return whether captures repeat a shorter sequence of sizes, so that it is open which of them is replayed."""
    periods = [period for period in range(1, len(size) // 2 + 1) if len(size) % period == 0]
    return any(np.array_equal(size[:-period], size[period:]) for period in periods)


def _run_the_same(trace: Trace, replays: _Nodes, num: int) -> bool:
    """Return whether every `num` nodes have the names of the first ones."""
    name = trace.events.name[replays.rows]
    return bool((name == name[np.arange(len(name)) % num]).all())
