"""Longest paths through a graph whose edges run forwards; in Python where the extension was not built.

Numbers of nodes and edges are int32, as a graph of 2**31 edges would not fit into memory; int64 is converted.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from traceq.grouping import Numbers

try:
    from traceq.causes import _paths
except ImportError:
    IS_NATIVE = False
else:
    IS_NATIVE = hasattr(_paths, "NUMBER_BYTES")  # a checkout may have been built before


def first_edges(target: Numbers, num_nodes: int) -> NDArray[np.int32]:
    """Return int32[N + 1]: the first of the edges, sorted by `target`, into each of N nodes, and after them all."""
    first = np.zeros(num_nodes + 1, np.int32)
    np.cumsum(np.bincount(target, minlength=num_nodes), out=first[1:])
    return first


def longest_paths(
    first: Numbers, source: Numbers, weight: NDArray[np.int64], *, native: bool = IS_NATIVE
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return (int64[N] the length of the longest path to each node, int32[N] the last edge of it, -1 without one).

    Edges are sorted by target, as `first_edges` has them; `source` [E] < target; `weight` int64[E]. Of equally long
    paths that over the first edge is chosen. A node without an edge is at 0.
    """
    time, choice = np.zeros(len(first) - 1, np.int64), np.full(len(first) - 1, -1, np.int32)
    if native:
        _paths.longest_paths(_int32(first), _int32(source), np.ascontiguousarray(weight), time, choice)
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
    return np.array(times, np.int64), np.array(choices, np.int32)


def trace_back(node: int, choice: Numbers, source: Numbers, *, native: bool = IS_NATIVE) -> NDArray[np.int32]:
    """Return the edges of the longest path to a node, the last one first."""
    if native:
        path = np.empty(len(choice), np.int32)
        return path[: _paths.trace_back(node, _int32(choice), _int32(source), path)].copy()
    edges = []
    while choice[node] >= 0:
        edges.append(int(choice[node]))
        node = int(source[edges[-1]])
    return np.array(edges, np.int32)


def paths_to(
    nodes: Numbers,
    since: NDArray[np.int64],
    choice: Numbers,
    source: Numbers,
    time: NDArray[np.int64],
    *,
    native: bool = IS_NATIVE,
) -> NDArray[np.int32]:
    """Return int32[N]: which of the longest paths to K `nodes` leads over each node, -1 for none.

    A path is followed back as long as it is after `since` int64[K], by `time` int64[N]; where several lead over a node,
    it is the one that comes there over the earliest node.
    """
    path = np.full(len(choice), -1, np.int32)
    path[nodes] = np.arange(len(nodes))
    if native:
        _paths.paths_to(np.ascontiguousarray(since), _int32(choice), _int32(source), np.ascontiguousarray(time), path)
        return path
    sinces, choices, sources, times, paths = (column.tolist() for column in (since, choice, source, time, path))
    for node in range(len(choices) - 1, -1, -1):
        before = sources[choices[node]] if choices[node] >= 0 else -1
        if paths[node] >= 0 and before >= 0 and times[before] > sinces[paths[node]]:
            paths[before] = paths[node]
    return np.array(paths, np.int32)


def topological_order(
    source: Numbers, target: Numbers, num_nodes: int, *, native: bool = IS_NATIVE
) -> NDArray[np.int32]:
    """Return int32[N]: the nodes so that every edge runs forwards. Raises ValueError if the graph has a circle."""
    order = np.argsort(source, kind="stable")
    first, targets = first_edges(source, num_nodes), target[order]
    degree, queue = np.bincount(target, minlength=num_nodes), np.empty(num_nodes, np.int32)
    ready = np.flatnonzero(degree == 0)
    if native:
        num = _paths.topological_order(first, _int32(targets), _int32(ready), _int32(degree), queue)
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


def least_into_each(first: Numbers, slack: NDArray[np.int64], *, native: bool = IS_NATIVE) -> NDArray[np.int32]:
    """Return the edge with the least `slack` int64[E] into each node that has any, of several the first; ascending.

    `first` as in `longest_paths`.
    """
    if native:
        chosen = np.empty(len(first) - 1, np.int32)
        return chosen[: _paths.least_into_each(_int32(first), np.ascontiguousarray(slack), chosen)]
    node = np.repeat(np.arange(len(first) - 1), np.diff(first))
    order = np.lexsort((slack, node)).astype(np.int32)  # of equal slacks the first stays first
    return order[np.flatnonzero(np.diff(node, prepend=-1))]


def next_marked(marked: Numbers, following: Numbers, *, native: bool = IS_NATIVE) -> NDArray[np.int32]:
    """Return int32[N]: the first mark (not -1) on the chain from each of N positions, itself included; -1 without one.

    `following` [N]: the next position of the chain, -1 at its end.
    """
    marked, following = _int32(marked), _int32(following)
    if (marked < 0).all():
        return marked
    if native:
        nearest = np.empty(len(marked), np.int32)
        _paths.next_marked(marked, following, nearest)
        return nearest
    jump = np.where((marked >= 0) | (following < 0), np.arange(len(following), dtype=np.int32), following)
    for _ in range(len(jump).bit_length()):
        jump = jump[jump]
    return marked[jump]


def _int32(numbers: Numbers) -> NDArray[np.int32]:
    return np.ascontiguousarray(numbers, np.int32)
