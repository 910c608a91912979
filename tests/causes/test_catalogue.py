"""Real traces on one common graph: replayed to the nanosecond, and explained alike in both directions."""

from __future__ import annotations

import re
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import FILES
from paths import TRACES

from traceq.causes.common_steps import CommonSteps, common_steps
from traceq.causes.longest_path import longest_paths
from traceq.compare.attribution import step_time
from traceq.compare.explain import explain
from traceq.compare.result import REPLACED_BY, Cause
from traceq.facts.events.device_work import device_work
from traceq.model import Trace
from traceq.runs.read import read

LARGE = ("hta-diff", "inference", "mtia", "owlv2", "sam-a100-ab")
"""Folders of which one pair takes a second or more."""


def pairs() -> list[Any]:
    """All pairs of traces of one folder, and of the two sides of one recording; of each the first is in every run."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(TRACES.rglob("*.json.gz")):
        kinds.setdefault(path.relative_to(TRACES).parts[0], []).append(path)
    params = []
    for kind, paths in kinds.items():
        for number, (a, b) in enumerate(combinations(paths, 2)):
            marks = [pytest.mark.slow] if number or kind in LARGE else []
            names = (side.relative_to(TRACES / kind).as_posix().removesuffix(".json.gz") for side in (a, b))
            params.append(pytest.param(a, b, id=f"{kind}: {' against '.join(names)}", marks=marks))
    none = pytest.mark.skip(reason=f"no {TRACES}")
    return params or [pytest.param(None, None, id="none", marks=none)]


PAIRS = pairs()


@cache
def trace_of(path: Path) -> Trace:
    """The trace; one without a device is no case."""
    trace = read(path).traces[0]
    return trace if len(device_work(trace)) else pytest.skip("no device")


def assert_replayed(common: CommonSteps) -> None:
    graph = common.graph
    assert (graph.edges.source < graph.edges.target).all()
    for weight, time in ((common.weights.a, graph.time_a), (common.weights.b, graph.time_b)):
        replayed, _ = longest_paths(graph.first_edge, graph.edges.source, weight)
        assert np.flatnonzero(replayed != time).tolist() == []


def parts_of(name: str) -> list[str]:
    """Names of a cause without their ops and ranks: two of a replacement. A pace is written without its percentage."""
    names = re.sub(r"^ranks? [\d, ]+: | \([+-][\d.]+ %\)$", "", name).split(REPLACED_BY)
    return [part.rpartition(" > ")[2] for part in names] if len(names) == 2 else names


def effects(causes: tuple[Cause, ...], sign: int) -> list[tuple[Any, ...]]:
    return sorted(
        (
            *(c.kind, c.phase, c.line, c.module, parts_of(c.name)[::sign], c.sd_ns),
            *(sign * value for value in (c.delta_num, c.delta_ns, c.count_ns, c.dur_ns, c.delta_bytes)),
        )
        for c in causes
    )


@pytest.mark.parametrize("path", FILES)
def test_a_trace_on_one_graph_with_itself_is_replayed_and_differs_nowhere(path: Path) -> None:
    trace = trace_of(path)
    common = common_steps([trace], [trace])
    assert_replayed(common)
    assert common.matched_pct == 100
    begin, end = common.graph.windows.T
    assert (common.graph.time_a[end] - common.graph.time_a[begin]).sum() == step_time(trace).total_ns
    assert (common.weights.a == common.weights.b).all()


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_both_sides_of_a_pair_are_replayed(a: Path, b: Path) -> None:
    assert_replayed(common_steps([trace_of(a)], [trace_of(b)]))


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_causes_close_and_turn_around(a: Path, b: Path) -> None:
    traced, _, causes = explain(trace_of(a), trace_of(b))
    assert sum(cause.delta_ns for cause in causes) == traced.delta_ns
    assert all(cause.count_ns + cause.dur_ns == cause.delta_ns for cause in causes)
    turned, _, back = explain(trace_of(b), trace_of(a))
    assert turned.delta_ns == -traced.delta_ns
    assert turned.matched_pct == traced.matched_pct
    assert effects(back, -1) == effects(causes, 1)
