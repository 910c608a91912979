"""Contribution of every edge to a delta: its change times the time it spends on the critical path from A to B.

Between A and B the weights change linearly: w(t) = w_A + t (w_B - w_A). The step T(w) is convex and piecewise linear,
its gradient the indicator of the critical path, so the integral of that indicator over t, times the change, adds up to
the delta exactly (Aumann and Shapley, Values of Non-Atomic Games, 1974).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.causes.common_graph import CommonGraph
from traceq.causes.longest_path import longest_paths, trace_back
from traceq.causes.weights import Weights

_POINTS = 16


def path_shares(graph: CommonGraph, weights: Weights) -> NDArray[np.float64]:
    """Return float64[E]: how much of each edge's change reaches the windows, summed over them.

    The sum of share times change is the change of all windows. Between two points the path changes once, where the
    tangents at both meet: T is convex, so that closes for any number of points.
    """
    first, change = graph.first_edge, weights.b - weights.a
    share = np.zeros(len(change))
    sinks = np.r_[graph.windows[:, 1], graph.windows[:, 0]]
    signs = np.repeat([1.0, -1.0], len(graph.windows))
    reached: dict[int, tuple[int, int, NDArray[np.int32], float]] = {}
    weight = _POINTS * weights.a
    for _ in range(_POINTS + 1):
        time, choice = longest_paths(first, graph.edges.source, weight)
        weight += change
        for number, sink in enumerate(sinks.tolist()):
            path, later = trace_back(sink, choice, graph.edges.source), 0.0
            time_1, slope_1 = int(time[sink]), int(change[path].sum())
            if number in reached:
                time_0, slope_0, path_0, since = reached[number]
                meets = (time_1 - time_0 - slope_0) / (slope_1 - slope_0) if slope_1 != slope_0 else 0.5
                later = min(max(meets, 0.0), 1.0) / _POINTS
                share[path_0] += signs[number] * (since + 1 / _POINTS - later)
            reached[number] = time_1, slope_1, path, later
    for sign, (_, _, path, since) in zip(signs, reached.values(), strict=True):
        share[path] += sign * since
    return share
