"""Modules of work in CUDA graphs by torch's annotations of nodes, or by their capture in another window."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import Captures, graph_replays, nodes_of_replays
from traceq.facts.memo import once_per_trace
from traceq.frozen import frozen
from traceq.intervals import sorted_unique
from traceq.model import Trace

__all__ = ["GraphLabels", "ReplayTimes", "captured_nodes", "graph_labels", "is_capture_known", "replay_times"]

_INDEX = re.compile(r"\.(\d+)(?=\.|$)")


@frozen(eq=False)
class GraphLabels:
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
def graph_labels(trace: Trace) -> GraphLabels:
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
    return GraphLabels(tuple(names), label)


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
