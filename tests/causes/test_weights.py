"""Weights of edges: what the traces force them to be, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from builder import Event, build, call, kernel, launch
from simulator import a_job, run_of

from traceq.causes.anchors import anchors
from traceq.causes.common_graph import RankClock, common_graph, recording_graph
from traceq.causes.common_steps import common_steps
from traceq.causes.edges import EdgeKind
from traceq.causes.rank_graph import graph_of_one
from traceq.causes.weights import edge_weights, idle_device_latency, usual_times, weights_of_one
from traceq.facts.timeline.active_thread import thread_chains


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


def test_a_recording_weighs_what_both_sides_of_a_comparison_with_itself_weigh() -> None:
    """Also edges that run backwards by the clocks, and calls that returned before the work that they wait for."""
    early = call("cudaDeviceSynchronize", 620, 30), launch(700, 2, 9), kernel("late", 698, 200, 9)
    for trace in (build(*launched(4, 60, 7, -3, 30, dur=150), *early), *run_of(a_job(3)).traces):
        rank = graph_of_one(anchors(trace, 1, thread_chains(trace), for_replay=True))
        both, one, usual = common_graph([rank], [RankClock()], 0, 1), recording_graph(rank, 1), usual_times(7_000)
        of_both = edge_weights(both, usual)
        is_one = both.edges.kind != EdgeKind.SINK
        assert np.array_equal(of_both.a, of_both.b)
        assert np.array_equal(weights_of_one(one, usual), of_both.a[is_one])
        assert np.array_equal(one.edges.source, both.edges.source[is_one])
        assert np.array_equal(one.edges.a, both.edges.a[is_one])
