"""Weights of edges: what the traces force them to be, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from builder import Event, build, kernel, launch
from simulator import a_job, run_of

from traceq.causes.common_steps import common_steps
from traceq.causes.weights import idle_device_latency


def launched(*latencies: float, dur: float = 5) -> list[Event]:
    """Launches every 100 us whose kernels start so long after the call began."""
    rows: list[Event] = []
    for number, latency in enumerate(latencies, 1):
        rows += [launch(100 * number, 2, number), kernel("gemm", 100 * number + latency, dur, number)]
    return rows


@pytest.mark.parametrize(
    ("rows", "expected_us"),
    [
        (launched(4, 6, 7, 8, 30), 7),
        (launched(4, 6, 7, 8), 5),  # too few: the usual one
        (launched(40, 60, 70, 80, 30), 20),  # at most
        (launched(4, 4, 4, 4, 4, dur=150), 5),  # all but one found the device busy
        ([], 5),
    ],
)
def test_the_usual_latency_is_the_median_of_work_that_found_the_device_idle(
    rows: list[Event], expected_us: int
) -> None:
    assert idle_device_latency(build(launch(1, 2, 0), *rows)) == 1000 * expected_us


@pytest.mark.parametrize("seed", range(20))
def test_one_edge_into_each_node_takes_what_was_observed_and_no_edge_more(seed: int) -> None:
    """Two ranks' programs of the same plan; what took as long on both sides has one weight."""
    a, b = run_of(a_job(seed, num_ranks=2, num_steps=3)).traces
    common = common_steps([a], [b])
    graph, weights = common.graph, common.weights
    observed = [time[graph.edges.target] - time[graph.edges.source] for time in (graph.time_a, graph.time_b)]
    with_edges = np.unique(graph.edges.target)
    for weight, binds, upper in zip((weights.a, weights.b), (weights.binds_a, weights.binds_b), observed, strict=True):
        assert (weight <= upper).all()
        assert np.bincount(graph.edges.target[binds], minlength=len(graph.time_a))[with_edges].tolist() == [1] * len(
            with_edges
        )
        assert (weight == upper)[binds].all()
    same = observed[0] == observed[1]
    assert (weights.a[same] == weights.b[same]).all()
    assert same.sum() > len(same) / 10


@pytest.mark.parametrize("seed", range(20))
def test_an_edge_changes_only_where_it_binds_or_was_observed_to_be_shorter(seed: int) -> None:
    a, b = run_of(a_job(seed, num_ranks=2, num_steps=3)).traces
    common = common_steps([a], [b])
    graph, weights = common.graph, common.weights
    upper_a, upper_b = (time[graph.edges.target] - time[graph.edges.source] for time in (graph.time_a, graph.time_b))
    changed = np.flatnonzero(weights.a != weights.b)
    forced = weights.binds_a | weights.binds_b | (weights.a == upper_a) | (weights.b == upper_b)
    assert forced[changed].all()
