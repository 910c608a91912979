"""The share of every edge: the time that it spends on the critical path, against fine numerical integration."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from examples import up_to
from hypothesis import given
from hypothesis import strategies as st

from traceq.causes.common_graph import CommonGraph
from traceq.causes.edges import EdgeKind, Edges
from traceq.causes.host_shares import HostShares
from traceq.causes.integral import path_shares
from traceq.causes.weights import Weights

FINE, COARSE = 2000, 16
Edge = tuple[int, int, int, int]  # source, target, ns on A, ns on B
Window = tuple[int, int]


def shares(edges: list[Edge], size: int, windows: list[Window]) -> np.ndarray:
    source, target, a, b = np.array(edges, np.int64).T
    none, some = np.zeros(0, np.int64), np.zeros(len(edges), np.int64)
    graph = CommonGraph(
        time_a=np.zeros(size, np.int64),
        time_b=np.zeros(size, np.int64),
        edges=Edges.of(source, target, EdgeKind.HOST),
        rank=some,
        host=HostShares(none, none, none, none, ()),
        windows=np.array(windows, np.int64),
        steps=np.zeros((len(windows), 2), np.int64),
        step=some,
        gap=some,
        num_anchors=(0, 0, 0),
    )
    return path_shares(graph, Weights(a, b, some > 0, some > 0))


def critical_path(edges: list[Edge], node: int, t: Fraction) -> tuple[Fraction, tuple[int, ...]]:
    """(its length, its edges) at A + t (B - A); of equally long ones that over the first edge."""
    best: tuple[Fraction, tuple[int, ...]] | None = None
    for index, (source, target, a, b) in enumerate(edges):
        if target == node:
            ns, path = critical_path(edges, source, t)
            ns += a + t * (b - a)
            if best is None or ns > best[0]:
                best = ns, (*path, index)
    return best or (Fraction(0), ())


def integrated(edges: list[Edge], node: int) -> tuple[np.ndarray, float]:
    """(share of each edge over many points, how far off `COARSE` points may be).

    Where the path changes once between two of these, they are exact; where it changes more often, the share of an edge
    is off by at most their distance.
    """
    inside = [Fraction(2 * point + 1, 2 * FINE) for point in range(FINE)]
    paths = [critical_path(edges, node, t)[1] for t in (Fraction(0), *inside, Fraction(1))]
    share = np.zeros(len(edges))
    for path in paths[1:-1]:
        share[list(path)] += 1 / FINE
    changes = [number for number, (x, y) in enumerate(pairwise(paths), 1) if x != y]
    touched = [place for number in changes for place in {(number - 2) * COARSE // FINE, number * COARSE // FINE}]
    return share, len(changes) / FINE + sum(touched.count(place) > 1 for place in set(touched)) / COARSE


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Edge], int]:
    """(edges by target, number of nodes): every node but the first has an edge."""
    size = draw(st.integers(2, 5))
    ns = st.integers(0, 10**6)
    edges = []
    for target in range(1, size):
        for source in draw(st.lists(st.integers(0, target - 1), min_size=1, max_size=3)):
            edges.append((source, target, draw(ns), draw(ns)))
    return edges, size


@pytest.mark.slow
@up_to(60)
@given(graphs(), st.data())
def test_shares_are_those_of_a_fine_integration(graph: tuple[list[Edge], int], data: st.DataObject) -> None:
    edges, size = graph
    begin = data.draw(st.integers(0, size - 2))
    (until_end, error), (until_begin, more) = (integrated(edges, node) for node in (size - 1, begin))
    result = shares(edges, size, [(begin, size - 1)])
    assert np.abs(result - (until_end - until_begin)).max() <= error + more + 1e-9


@up_to(200)
@given(graphs(), st.data())
def test_causes_add_up_to_the_change_of_all_windows(graph: tuple[list[Edge], int], data: st.DataObject) -> None:
    edges, size = graph
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    windows = data.draw(st.lists(pairs, min_size=1, max_size=3))
    expected = sum(
        sign * (critical_path(edges, node, Fraction(1))[0] - critical_path(edges, node, Fraction(0))[0])
        for window in windows
        for sign, node in zip((-1, 1), window, strict=True)
    )
    changes = np.array([b - a for *_, a, b in edges])
    assert shares(edges, size, windows) @ changes == pytest.approx(float(expected), abs=1e-3)


@up_to(100)
@given(graphs())
def test_exchanged_sides_have_the_same_shares_of_the_negated_change(graph: tuple[list[Edge], int]) -> None:
    edges, size = graph
    there = shares(edges, size, [(0, size - 1)])
    back = shares([(source, target, b, a) for source, target, a, b in edges], size, [(0, size - 1)])
    changes = np.array([b - a for *_, a, b in edges])
    assert there @ changes == pytest.approx(back @ changes, abs=1e-3)


def test_what_becomes_critical_half_way_has_half_a_share() -> None:
    """Two ways from 0 to 1: one takes 10 on both sides, the other 0 and then 20: it decides from t = 1/2 on."""
    assert shares([(0, 1, 10, 10), (0, 1, 0, 20)], 2, [(0, 1)]).tolist() == pytest.approx([0.5, 0.5])


def test_what_stays_hidden_has_no_share() -> None:
    assert shares([(0, 1, 30, 30), (0, 1, 0, 20)], 2, [(0, 1)]).tolist() == [1, 0]


def test_two_changes_of_which_either_would_do_share_what_the_longer_one_costs() -> None:
    """Two ways of 10 become 30 and 50: the second is always the longer one, 40 in all."""
    assert shares([(0, 1, 10, 30), (0, 1, 10, 50)], 2, [(0, 1)])[1] * 40 == pytest.approx(40)


def test_what_is_before_the_window_has_no_share() -> None:
    assert shares([(0, 1, 10, 90), (1, 2, 5, 7)], 3, [(1, 2)]).tolist() == [0, 1]
