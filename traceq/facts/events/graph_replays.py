"""Replays of CUDA graphs: the work that each launched, the calls captured for it, and the modules of these."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching, rows_named
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.memo import once_per_trace
from traceq.frozen import frozen
from traceq.intervals import Spans, sorted_unique, span_index
from traceq.model import Category, Trace

_REPLAY = re.compile(r"GraphLaunch")
_BEGIN, _END = (re.compile(rf"^(cuda|hip|cu)Stream{word}Capture") for word in ("Begin", "End"))
_INSTANTIATE = re.compile(r"^(cuda|hip|cu)GraphInstantiate")
_CAPTURED = re.compile(
    r"^(cuda|hip|cu)\w*(LaunchKernel|LaunchCooperativeKernel|Memcpy\w{0,80}Async|Memset\w{0,80}Async)"
)
"""Calls that become a node of the graph while it is captured."""
_INDEX = re.compile(r"\.(\d+)(?=\.|$)")


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


@frozen(eq=False)
class Captures:
    """Nodes of K graphs in order: graph `index` has `rows[first[index]:first[index] + size[index]]`.

    `ts` int64[K] is when its capture ended; `in_turn`: graphs are instantiated in the order of their captures.
    """

    rows: NDArray[np.int64]
    size: NDArray[np.int64]
    ts: NDArray[np.int64]
    in_turn: bool = False

    @property
    def first(self) -> NDArray[np.int64]:
        return np.cumsum(self.size) - self.size


@frozen(eq=False)
class _Replays:
    """R replays in order, like Captures; `ts` int64[R] is when each is launched.

    `work`: the indices of DeviceWork in that order; `graph` int64[R]: the executable graph, -1 if the trace names none.
    """

    rows: NDArray[np.int64]
    work: NDArray[np.int64]
    size: NDArray[np.int64]
    ts: NDArray[np.int64]
    graph: NDArray[np.int64]

    @property
    def first(self) -> NDArray[np.int64]:
        return np.cumsum(self.size) - self.size


@once_per_trace
def graph_replays(trace: Trace) -> GraphReplays:
    """Return the work of replays, with its captured calls where the capture is in the trace, too."""
    work = device_work(trace)
    replayed = matching(trace.events, work.call, _REPLAY) & work.linked
    captured = nodes_of_replays(trace, replayed, captures(trace)) if replayed.any() else np.full(len(work), -1)
    return GraphReplays(replayed, captured)


def nodes_of_replays(trace: Trace, replayed: NDArray[np.bool_], recorded: Captures) -> NDArray[np.int64]:
    """Return int64[D]: for the work of replays the row of its node in the captures, -1 where that is not certain.

    Nodes run in the order of their capture, on one stream, or, with ids of nodes, in the order of these. A replay
    belongs to a capture if all replays follow each other as the captures did, with as many nodes each, or if no other
    capture has as many nodes; and if its replays run the same kernels. Where the trace names graphs, graphs in the
    order of their ids follow each other as the captures did.
    """
    result = np.full(len(replayed), -1)
    if len(recorded.size):
        replays = _replays(trace, np.flatnonzero(replayed))
        graph = _captures_of(trace, recorded, replays)
        nodes = np.repeat(recorded.first[graph] - replays.first, replays.size) + np.arange(len(replays.work))
        is_linked = np.repeat(graph >= 0, replays.size)
        result[replays.work[is_linked]] = recorded.rows[nodes[is_linked]]
    return result


def single_capture_calls(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of calls that begin to capture a graph, but for captures that recur."""
    calls = rows_named(trace.events, _BEGIN, Category.RUNTIME)
    return calls[~np.isin(trace.events.ts[calls], capture_spans(trace)[_recurs(trace), 0])]


def single_capture_spans(trace: Trace) -> Spans:
    """Return when CUDA graphs are captured, but for captures that recur, by begin."""
    return capture_spans(trace)[~_recurs(trace)]


@once_per_trace
def _recurs(trace: Trace) -> NDArray[np.bool_]:
    """Return which of `capture_spans` capture the same launches as another, between which a graph is replayed again.

    A cold start captures the same launches more than once, too: of each layer, which it replays at most once then.
    """
    events, spans, recorded = trace.events, capture_spans(trace), captures(trace)
    launches = np.sort(events.ts[rows_named(events, _REPLAY, Category.RUNTIME)])
    num_replayed_again = np.searchsorted(launches, spans[:, 0]) - np.arange(len(spans))
    op = host_ops(trace).rows_at(tracks(trace)[recorded.rows], events.ts[recorded.rows])
    content = np.column_stack([events.name[recorded.rows], np.where(op >= 0, events.name[op], -1)])
    last: dict[bytes, int] = {}
    result = np.zeros(len(spans), np.bool_)
    nodes = np.split(content, recorded.first[1:])
    for index, rows in zip(np.flatnonzero(np.isin(spans[:, 1], recorded.ts)).tolist(), nodes, strict=False):
        before = last.get(rows.tobytes(), index)
        result[[before, index]] |= num_replayed_again[index] > num_replayed_again[before]
        last[rows.tobytes()] = index
    return result


@once_per_trace
def capture_spans(trace: Trace) -> Spans:
    """Return when CUDA graphs are captured, by begin; captures of several threads may overlap."""
    events = trace.events
    calls = events.by_start(events.rows(Category.RUNTIME))
    begins, ends = (calls[matching(events, calls, pattern)] for pattern in (_BEGIN, _END))
    windows = [
        (begin_ns, end_ns)
        for number in sorted_unique(tracks(trace)[begins]).tolist()
        for begin_ns, end_ns in _windows(*(events.ts[rows[tracks(trace)[rows] == number]] for rows in (begins, ends)))
    ]
    return np.array(sorted(windows), np.int64).reshape(-1, 2)


def instantiations(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of calls that make what was captured a graph that can be launched, by start."""
    calls = trace.events.by_start(trace.events.rows(Category.RUNTIME))
    return calls[matching(trace.events, calls, _INSTANTIATE)]


def captures(trace: Trace) -> Captures:
    """Return the captures that launch anything, each with the calls that it records.

    Calls of other threads count, as backward launches on that of the autograd engine; not where captures overlap.
    """
    events, spans = trace.events, capture_spans(trace)
    calls = events.by_start(events.rows(Category.RUNTIME))
    if (spans[1:, 0] < spans[:-1, 1]).any():
        return Captures(calls[:0], calls[:0], calls[:0])
    launches = calls[matching(events, calls, _CAPTURED)]
    launches = launches[~np.isin(launches, device_work(trace).call)]
    capture = span_index(spans, events.ts[launches])
    size = np.bincount(capture[capture >= 0], minlength=len(spans))
    instantiated = np.searchsorted(spans[:, 0], events.ts[instantiations(trace)], "right")
    in_turn = bool((np.bincount(instantiated, minlength=len(spans) + 1)[1:] == 1).all())
    return Captures(launches[capture >= 0], size[size > 0], spans[size > 0, 1], in_turn)


def _windows(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return (begin, end) ns of the captures of one thread, in which a begin and its end follow each other."""
    following = np.searchsorted(ends, begins)
    has_end = following < len(ends)
    return list(zip(begins[has_end].tolist(), ends[following[has_end]].tolist(), strict=True))


def _replays(trace: Trace, index: NDArray[np.int64]) -> _Replays:
    """Return the replays, by their launches, that these indices of DeviceWork belong to.

    A replay on several streams has no order of its nodes, unless the trace names them: it is left out.
    """
    work, events = device_work(trace), trace.events
    graph, node = _ids_of_nodes(trace, work.rows[index])
    has_ids = bool(((graph > 0) & (node >= 0)).all())
    calls, replay = np.unique(work.call[index], return_inverse=True)
    lowest, highest = np.full(len(calls), np.iinfo(np.int64).max), np.full(len(calls), -1)
    shared = graph if has_ids else work.stream[index]
    np.minimum.at(lowest, replay, shared)
    np.maximum.at(highest, replay, shared)
    kept = np.flatnonzero(lowest == highest)
    kept = kept[np.argsort(events.ts[calls[kept]], kind="stable")]
    place = np.full(len(calls), -1)
    place[kept] = np.arange(len(kept))
    order = np.lexsort((node if has_ids else np.arange(len(index)), place[replay]))
    order = order[place[replay[order]] >= 0]
    size = np.bincount(place[replay[order]], minlength=len(kept))
    of_graph = lowest[kept] if has_ids else np.full(len(kept), -1)
    return _Replays(work.rows[index[order]], index[order], size, events.ts[calls[kept]], of_graph)


def _ids_of_nodes(trace: Trace, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (graph, node) of rows of Events: int64[K] each, -1 where the trace does not name them."""
    nodes = trace.events.nodes
    index = np.full(len(trace.events), -1)
    index[nodes.row] = np.arange(len(nodes.row))
    return np.append(nodes.graph, -1)[index[rows]], np.append(nodes.node, -1)[index[rows]]


def _captures_of(trace: Trace, recorded: Captures, replays: _Replays) -> NDArray[np.int64]:
    """Return which capture each replay runs: int64[R], -1 where that is not certain."""
    has_ids = bool((replays.graph >= 0).all())
    in_turn = _in_turn_of_ids(recorded, replays) if has_ids else _in_turn(trace, recorded, replays)
    if in_turn is not None:
        return in_turn
    graph = np.full(len(replays.size), -1)
    for capture in np.flatnonzero(np.bincount(recorded.size)[recorded.size] == 1).tolist():
        same = np.flatnonzero(replays.size == recorded.size[capture])
        nodes = (replays.first[same][:, None] + np.arange(recorded.size[capture])).ravel()
        is_one = len(sorted_unique(replays.graph[same])) == 1
        is_later = bool((replays.ts[same] >= recorded.ts[capture]).all())
        if is_one and is_later and _run_the_same(trace, replays.rows[nodes], int(recorded.size[capture])):
            graph[same] = capture
    return graph


def _in_turn(trace: Trace, recorded: Captures, replays: _Replays) -> NDArray[np.int64] | None:
    """Return the captures of replays that follow each other as the captures did, over and over; None of others."""
    in_turn = np.arange(len(replays.size)) % len(recorded.size)
    follows = (
        len(replays.size) >= len(recorded.size)
        and not _repeats(recorded.size)
        and np.array_equal(recorded.size[in_turn], replays.size)
        and (recorded.ts[in_turn] <= replays.ts).all()
        and _run_the_same(trace, replays.rows, int(recorded.size.sum()))
    )
    return in_turn if follows else None


def _in_turn_of_ids(recorded: Captures, replays: _Replays) -> NDArray[np.int64] | None:
    """Return the captures of graphs whose ids ascend as graphs were captured, all of them; None of others.

    Ids ascend with the instantiation of graphs, which torch can put off until the first replay.
    """
    graphs, index = np.unique(replays.graph, return_inverse=True)
    follows = (
        recorded.in_turn
        and len(graphs) == len(recorded.size)
        and np.array_equal(recorded.size[index], replays.size)
        and (recorded.ts[index] <= replays.ts).all()
    )
    return index if follows else None


def _repeats(size: NDArray[np.int64]) -> bool:
    """Return whether captures repeat a shorter sequence of sizes, so that it is open which of them is replayed."""
    periods = [period for period in range(1, len(size) // 2 + 1) if len(size) % period == 0]
    return any(np.array_equal(size[:-period], size[period:]) for period in periods)


def _run_the_same(trace: Trace, rows: NDArray[np.int64], num: int) -> bool:
    """Return whether every `num` nodes have the names of the first ones."""
    name = trace.events.name[rows]
    return bool((name == name[np.arange(len(name)) % num]).all())


@frozen(eq=False)
class _GraphLabels:
    """Modules that nodes of graphs were captured in: `names`, and `label` int64[D] of device work, -1 without."""

    names: tuple[str, ...]
    label: NDArray[np.int64]


@frozen
class ReplayTimes:
    """Sums over device work, ns: of all, of what `num` replays launched, and of its part whose capture is known."""

    gpu_ns: int
    replay_ns: int
    captured_ns: int
    num: int


@once_per_trace
def graph_labels(trace: Trace) -> _GraphLabels:
    """Return the annotations of nodes, else the modules in which another window of this process captured them.

    Layers in a list are numbered as modules in stacks are: `layers.0` is `layers_0`.
    """
    replays, events = graph_replays(trace), trace.events
    texts = np.full(len(events), -1)
    texts[events.nodes.row] = events.nodes.label
    label = texts[device_work(trace).rows]
    strings = sorted_unique(label[label >= 0])
    names = [_INDEX.sub(r"_\1", events.strings[text]) for text in strings.tolist()]
    label = np.where(label >= 0, np.searchsorted(strings, label), -1)
    if trace.captured is not None:
        recorded, node = trace.captured, captured_nodes(trace)
        is_new = (label < 0) & (replays.captured < 0) & (np.append(recorded.module, -1)[node] >= 0)
        label[is_new] = len(names) + recorded.module[node[is_new]]
        names += recorded.names
    return _GraphLabels(tuple(names), label)


@once_per_trace
def captured_nodes(trace: Trace) -> NDArray[np.int64]:
    """Return int64[D]: the node of `trace.captured` that device work runs, -1 for other work and where it is open."""
    replayed, recorded = graph_replays(trace).replayed, trace.captured
    if recorded is None or not replayed.any():
        return np.full(len(replayed), -1)
    before = np.full(len(recorded.size), np.iinfo(np.int64).min)
    nodes = Captures(np.arange(int(recorded.size.sum())), recorded.size, before, recorded.in_turn)
    return nodes_of_replays(trace, replayed, nodes)


def is_capture_known(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[D]: whether it is known what device work was captured in, by a capture, an annotation or a window."""
    return (graph_replays(trace).captured >= 0) | (graph_labels(trace).label >= 0)


def replay_times(trace: Trace) -> ReplayTimes:
    """Return how much of the device's time replays launch."""
    work, replays = device_work(trace), graph_replays(trace)
    ns, calls = work.end - work.start, sorted_unique(work.call[replays.replayed])
    known_ns = ns[replays.replayed & is_capture_known(trace)].sum()
    return ReplayTimes(int(ns.sum()), int(ns[replays.replayed].sum()), int(known_ns), len(calls))
