"""HTA's critical path as a second opinion (`pip install traceinsight`): what it says, and why traceq says otherwise.

HTA ends a path where the host's step ends, and counts edges between rows as nothing: its path does not add up to the
step. traceq's tiles the step to the end of the work that it launched.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import TRACES

from traceq.causes.critical_path import PathKind, critical_path
from traceq.facts.timeline.steps import steps
from traceq.kineto.read import read_trace


def trace_file(name: str) -> Path:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no trace {name} beside this checkout")
    return path


@pytest.fixture
def hta_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Ms by what bounds the n-th step of a trace, as HTA has it."""
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    analysis = pytest.importorskip("hta.trace_analysis", reason="HTA is not installed (pip install traceinsight)")
    logging.getLogger("hta").setLevel(logging.ERROR)

    def edges_of(name: str, number: int) -> dict[str, float]:
        file = tmp_path / "rank0.json.gz"
        shutil.copy(trace_file(name), file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace = analysis.TraceAnalysis(trace_files={0: str(file)}, trace_dir=str(tmp_path))
            graph, done = trace.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=number)
            assert done
            sums = graph.get_critical_path_breakdown().groupby("bound_by").duration.sum()
        return {bound: ns / 1000 for bound, ns in sums.items() if bound}

    return edges_of


def own_path(name: str, number: int) -> dict[str, float]:
    """Ms by what the path of the n-th step leads through."""
    trace = read_trace(trace_file(name))
    path, windows = critical_path(trace), steps(trace).window
    selected = np.searchsorted(windows[:, 0], path.parts[:, 0], "right") - 1 == number
    ns = (path.parts[:, 1] - path.parts[:, 0])[selected]
    return {on.name: ns[path.kind[selected] == on].sum() / 1e6 for on in PathKind}


@pytest.mark.slow
def test_hta_and_traceq_find_the_same_190_ms_of_host_ops_but_hta_leaves_out_30_ms_of_python_between_them(
    hta_path: Any,
) -> None:
    theirs, ours = hta_path("ddp-a100/rank0", 1), own_path("ddp-a100/rank0", 1)
    assert theirs.keys() == {"cpu_bound"}
    assert theirs["cpu_bound"] == pytest.approx(ours["HOST_OP"], rel=0.005)
    assert ours["PYTHON"] == pytest.approx(29.8, abs=0.1)


def test_hta_leaves_out_the_second_that_the_straggler_spends_in_no_op(hta_path: Any) -> None:
    name = "torchrec-v100-straggler-4r/rank2"
    theirs, ours = hta_path(name, 1), own_path(name, 1)
    assert sum(theirs.values()) == pytest.approx(131.9, abs=0.1)
    assert sum(ours.values()) == pytest.approx(1160.3, abs=0.1)
    assert ours["PYTHON"] == pytest.approx(1006, abs=1)


@pytest.mark.slow
def test_hta_ends_with_the_host_where_the_host_runs_ahead_and_traceq_with_the_device(hta_path: Any) -> None:
    theirs, ours = hta_path("nanogpt-h100-8r/rank0", 2), own_path("nanogpt-h100-8r/rank0", 2)
    assert theirs.keys() == {"cpu_bound"}
    assert ours["HOST_OP"] == ours["PYTHON"] == 0
    assert ours["KERNEL"] + ours["COLLECTIVE"] > 0.9 * sum(ours.values())


@pytest.mark.slow
def test_hta_gives_up_on_a_copy_whose_call_lies_outside_the_step(hta_path: Any) -> None:
    with pytest.raises(AssertionError, match="Could not find runtime index"):
        hta_path("resnet50-2021/workers0", 2)
    assert sum(own_path("resnet50-2021/workers0", 2).values()) > 100
