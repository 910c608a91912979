"""Longest paths, by the extension and in Python, against all paths of small graphs."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import numpy as np
import pytest
from examples import up_to
from hypothesis import given
from hypothesis import strategies as st

from traceq.causes.longest_path import (
    IS_NATIVE,
    least_into_each,
    longest_paths,
    next_marked,
    paths_to,
    topological_order,
    trace_back,
)

BOTH = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(not IS_NATIVE, reason="the extension was not built")),
]
Edge = tuple[int, int, int]  # source, target, weight


@st.composite
def forward_graphs(draw: st.DrawFn) -> tuple[int, list[Edge]]:
    """(number of nodes, edges by target); a few weights, so that paths of equal length are common."""
    size = draw(st.integers(1, 7))
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(lambda pair: pair[0] < pair[1])
    edges = draw(st.lists(pairs, max_size=12)) if size > 1 else []
    weights = draw(st.lists(st.integers(-2, 3), min_size=len(edges), max_size=len(edges)))
    return size, sorted(((*pair, w) for pair, w in zip(edges, weights, strict=True)), key=lambda edge: edge[1])


def columns(size: int, edges: list[Edge]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source, target, weight = np.array(edges, np.int64).reshape(-1, 3).T
    return np.searchsorted(target, np.arange(size + 1), "left").astype(np.int64), source, weight


def all_lengths(edges: list[Edge], node: int) -> list[int]:
    """Lengths of all paths that begin where no edge ends."""
    incoming = [edge for edge in edges if edge[1] == node]
    return [length + weight for source, _, weight in incoming for length in all_lengths(edges, source)] or [0]


@pytest.mark.slow
@pytest.mark.parametrize("native", BOTH)
@up_to(400)
@given(forward_graphs())
def test_no_path_is_longer(native: bool, graph: tuple[int, list[Edge]]) -> None:
    size, edges = graph
    first, source, weight = columns(size, edges)
    time, choice = longest_paths(first, source, weight, native=native)
    assert time.tolist() == [max(all_lengths(edges, node)) for node in range(size)]
    for node in range(size):
        path = [edges[index] for index in trace_back(node, choice, source, native=native)]
        assert sum(weight for *_, weight in path) == time[node]
        assert [target for _, target, _ in path] == [node, *(source for source, *_ in path)][: len(path)]
        assert not path or not [edge for edge in edges if edge[1] == path[-1][0]]


@pytest.mark.parametrize("native", BOTH)
@up_to(400)
@given(forward_graphs(), st.data())
def test_every_node_of_a_path_that_is_late_enough_is_on_it(
    native: bool, graph: tuple[int, list[Edge]], data: st.DataObject
) -> None:
    size, edges = graph
    first, source, weight = columns(size, edges)
    time, choice = longest_paths(first, source, weight, native=native)
    node, since = data.draw(st.integers(0, size - 1)), data.draw(st.integers(-3, 9))
    reached = paths_to(np.array([node]), np.array([since]), choice, source, time, native=native)
    expected = [node]
    while choice[expected[-1]] >= 0 and time[source[choice[expected[-1]]]] > since:
        expected.append(int(source[choice[expected[-1]]]))
    assert np.flatnonzero(reached >= 0).tolist() == sorted(expected)


@pytest.mark.skipif(not IS_NATIVE, reason="the extension was not built")
@up_to(400)
@given(forward_graphs())
def test_the_extension_chooses_the_paths_that_python_chooses(graph: tuple[int, list[Edge]]) -> None:
    native, python = (longest_paths(*columns(*graph), native=flag) for flag in (True, False))
    assert [column.tolist() for column in native] == [column.tolist() for column in python]


@pytest.mark.parametrize("native", BOTH)
def test_of_equally_long_paths_the_first_edge_is_chosen(native: bool) -> None:
    """0 to 2 directly takes 5, over 1 takes 2 + 3."""
    first, source, weight = columns(3, [(0, 1, 2), (0, 2, 5), (1, 2, 3)])
    time, choice = longest_paths(first, source, weight, native=native)
    assert (time.tolist(), choice.tolist()) == ([0, 2, 5], [-1, 0, 1])


@pytest.mark.parametrize("native", BOTH)
@up_to(400)
@given(st.integers(1, 6), st.data())
def test_edges_run_forwards_in_topological_order(native: bool, size: int, data: st.DataObject) -> None:
    nodes = st.integers(0, size - 1)
    edges = data.draw(st.lists(st.tuples(nodes, nodes), max_size=8))
    source, target = np.array(edges, np.int64).reshape(-1, 2).T
    sorter = TopologicalSorter({node: [x for x, y in edges if y == node] for node in range(size)})
    try:
        sorter.prepare()
    except CycleError:
        with pytest.raises(ValueError, match="nodes depend on each other"):
            topological_order(source, target, size, native=native)
        return
    order = topological_order(source, target, size, native=native).tolist()
    assert sorted(order) == list(range(size))
    assert all(order.index(x) < order.index(y) for x, y in edges)
    assert order == topological_order(source, target, size, native=False).tolist()


@pytest.mark.parametrize("native", BOTH)
@up_to(400)
@given(forward_graphs())
def test_the_edge_with_the_least_slack_leads_into_each_node(native: bool, graph: tuple[int, list[Edge]]) -> None:
    size, edges = graph
    first, _, slack = columns(size, edges)
    into = [[index for index, edge in enumerate(edges) if edge[1] == node] for node in range(size)]
    least = [min(indices, key=lambda index: edges[index][2]) for indices in into if indices]
    assert least_into_each(first, slack, native=native).tolist() == least


@pytest.mark.parametrize("native", BOTH)
@up_to(400)
@given(st.permutations(range(8)), st.lists(st.integers(-1, 7), min_size=8, max_size=8), st.data())
def test_the_first_mark_on_a_chain_is_that_of_a_walk_along_it(
    native: bool, order: list[int], position: list[int], data: st.DataObject
) -> None:
    """The chains lead to a place before, in some order."""
    following = [-1] * len(order)
    for place, node in enumerate(order):
        before = min(position[node], place - 1)
        following[node] = order[before] if before >= 0 else -1
    marked = data.draw(st.lists(st.integers(-1, 2), min_size=8, max_size=8))

    def walked(node: int) -> int:
        while marked[node] < 0 and following[node] >= 0:
            node = following[node]
        return marked[node]

    nearest = next_marked(np.array(marked), np.array(following), native=native)
    assert nearest.tolist() == [walked(node) for node in range(len(order))]
