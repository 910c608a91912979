"""Longest paths through a graph whose edges run forwards; in Python where the extension was not built."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

try:
    from traceq.causes import _paths
except ImportError:
    IS_NATIVE = False
else:
    IS_NATIVE = hasattr(_paths, "next_marked")  # a checkout may have been built before

__all__ = ["least_into_each", "longest_paths", "next_marked", "paths_to", "topological_order", "trace_back"]


def longest_paths(
    first: NDArray[np.int64], source: NDArray[np.int64], weight: NDArray[np.int64], *, native: bool = IS_NATIVE
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (int64[N] the length of the longest path to each node, int64[N] the last edge of it, -1 without one).

    Edges are sorted by target: those into node n are `first`[n] to `first`[n + 1]; `source` int64[E] < target;
    `weight` int64[E]. Of equally long paths that over the first edge is chosen. A node without an edge is at 0.
    """
    time, choice = np.zeros(len(first) - 1, np.int64), np.full(len(first) - 1, -1)
    if native:
        _paths.longest_paths(first, np.ascontiguousarray(source), np.ascontiguousarray(weight), time, choice)
        return time, choice
    times: list[int] = []
    choices: list[int] = []
    sources, weights = source.tolist(), weight.tolist()
    for begin, end in pairwise(first.tolist()):
        latest, chosen = 0, -1
        for edge in range(begin, end):
            arrival = times[sources[edge]] + weights[edge]
            if chosen < 0 or arrival > latest:
                latest, chosen = arrival, edge
        times.append(latest)
        choices.append(chosen)
    return np.array(times, np.int64), np.array(choices, np.int64)


def trace_back(
    node: int, choice: NDArray[np.int64], source: NDArray[np.int64], *, native: bool = IS_NATIVE
) -> NDArray[np.int64]:
    """Return the edges of the longest path to a node, the last one first."""
    if native:
        path = np.empty(len(choice), np.int64)
        return path[: _paths.trace_back(node, choice, np.ascontiguousarray(source), path)].copy()
    edges = []
    while choice[node] >= 0:
        edges.append(int(choice[node]))
        node = int(source[edges[-1]])
    return np.array(edges, np.int64)


def paths_to(
    nodes: NDArray[np.int64],
    since: NDArray[np.int64],
    choice: NDArray[np.int64],
    source: NDArray[np.int64],
    time: NDArray[np.int64],
    *,
    native: bool = IS_NATIVE,
) -> NDArray[np.int64]:
    """Return int64[N]: which of the longest paths to K `nodes` leads over each node, -1 for none.

    A path is followed back as long as it is after `since` int64[K], by `time` int64[N]; where several lead over a node,
    it is the one that comes there over the earliest node.
    """
    path = np.full(len(choice), -1)
    path[nodes] = np.arange(len(nodes))
    if native:
        since, choice, source, time = map(np.ascontiguousarray, (since, choice, source, time))
        _paths.paths_to(since, choice, source, time, path)
        return path
    sinces, choices, sources, times, paths = (column.tolist() for column in (since, choice, source, time, path))
    for node in range(len(choices) - 1, -1, -1):
        before = sources[choices[node]] if choices[node] >= 0 else -1
        if paths[node] >= 0 and before >= 0 and times[before] > sinces[paths[node]]:
            paths[before] = paths[node]
    return np.array(paths, np.int64)


def topological_order(
    source: NDArray[np.int64], target: NDArray[np.int64], num_nodes: int, *, native: bool = IS_NATIVE
) -> NDArray[np.int64]:
    """Return int64[N]: the nodes so that every edge runs forwards. Raises ValueError if the graph has a circle."""
    order = np.argsort(source, kind="stable")
    first, targets = np.searchsorted(source[order], np.arange(num_nodes + 1)), target[order]
    degree, queue = np.bincount(target, minlength=num_nodes), np.empty(num_nodes, np.int64)
    ready = np.flatnonzero(degree == 0)
    if native:
        num = _paths.topological_order(first, targets, ready, degree, queue)
    else:
        num, degrees, ordered = 0, degree.tolist(), ready.tolist()
        for node in ordered:
            num += 1
            for following in targets[first[node] : first[node + 1]].tolist():
                degrees[following] -= 1
                if degrees[following] == 0:
                    ordered.append(following)
        queue[:num] = ordered
    if num < num_nodes:
        raise ValueError(f"{num_nodes - num} nodes depend on each other")
    return queue


def least_into_each(
    first: NDArray[np.int64], slack: NDArray[np.int64], *, native: bool = IS_NATIVE
) -> NDArray[np.int64]:
    """Return the edge with the least `slack` int64[E] into each node that has any, of several the first; ascending.

    `first` as in `longest_paths`.
    """
    if native:
        chosen = np.empty(len(first) - 1, np.int64)
        return chosen[: _paths.least_into_each(first, np.ascontiguousarray(slack), chosen)]
    node = np.repeat(np.arange(len(first) - 1), np.diff(first))
    order = np.lexsort((slack, node))  # of equal slacks the first stays first
    return order[np.flatnonzero(np.diff(node, prepend=-1))]


def next_marked(
    marked: NDArray[np.int64], following: NDArray[np.int64], *, native: bool = IS_NATIVE
) -> NDArray[np.int64]:
    """Return int64[N]: the first mark (not -1) on the chain from each of N positions, itself included; -1 without one.

    `following` int64[N]: the next position of the chain, -1 at its end.
    """
    if (marked < 0).all():
        return marked
    if native:
        nearest = np.empty(len(marked), np.int64)
        _paths.next_marked(np.ascontiguousarray(marked), np.ascontiguousarray(following), nearest)
        return nearest
    index = np.arange(len(following), dtype=np.int32)  # half as much to gather
    jump = np.where((marked >= 0) | (following < 0), index, following.astype(np.int32))
    for _ in range(len(index).bit_length()):
        jump = jump[jump]
    return marked[jump]
