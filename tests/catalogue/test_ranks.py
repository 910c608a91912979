"""Several ranks of real jobs: who was late, by how much, and a collective that one of them leaves out."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from builder import table
from paths import TRACES

from traceq.analysis.registry import analyze
from traceq.facts.comm.collectives import collective_calls
from traceq.model import Events, Run, Trace
from traceq.runs.read import read

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no {TRACES}")


@cache
def job(name: str) -> Run:
    return read(TRACES / name)


def waits(name: str) -> dict[int, int]:
    return {row["rank"]: row["wait_ns"] for row in table(job(name), "ranks")}


def straggler(name: str) -> Any:
    (finding,) = analyze(job(name), "ranks").findings
    return finding


@pytest.mark.parametrize(
    ("name", "rank", "ratio"),
    [
        ("torchrec-v100-straggler-4r", 2, 0.000),
        ("nanogpt-h100-8r", 1, 0.014),
        ("dlrm-v100-8r", None, 0.484),
        pytest.param("torchrec-v100-ab/a", None, 0.079, id="two steps, 36 and 44 ms"),
        ("torchrec-v100-ab/b", 2, 0.0193),
    ],
)
def test_a_rank_is_named_by_its_share_of_what_the_others_wait(name: str, rank: int | None, ratio: float) -> None:
    """The ratios are those of starts on one clock in whole steps, by a separate computation."""
    result = waits(name)
    least = min(result, key=lambda one: result[one])
    assert result[least] / np.median([wait for one, wait in result.items() if one != least]) == pytest.approx(
        ratio, abs=2e-3
    )
    verdicts = {row["rank"]: row["verdict"] for row in table(job(name), "ranks")}
    named = [one for one, verdict in verdicts.items() if verdict == "straggler"]
    assert named == ([] if rank is None else [rank])
    if rank is None:  # of one step, and of two in both of which one is waited for
        assert set(verdicts.values()) == {"waits", "irregular" if name == "dlrm-v100-8r" else "undecided"}


def test_the_straggler_of_torchrec_idles_a_second_a_step_in_its_sparse_arch() -> None:
    """It spends 37 ms in all-to-all, the others 3,069."""
    gpu_ns = {row["rank"]: 0 for row in table(job("torchrec-v100-straggler-4r"), "collectives")}
    for row in table(job("torchrec-v100-straggler-4r"), "collectives"):
        gpu_ns[row["rank"]] += row["gpu_ns"] if row["num"] else 0
    assert [round(gpu_ns[rank] / 1e6) for rank in range(4)] == [3070, 3069, 37, 3068]
    finding = straggler("torchrec-v100-straggler-4r")
    assert finding.subject.phase == "## forward ##"
    measures = finding.measures
    assert (measures["category"], measures["before"]) == ("host-bound", "_AlltoAllSingle")
    assert [measures[name] / 1e9 for name in ("wait_ns", "excess_ns")] == pytest.approx([1.01, 1.00], abs=0.005)
    assert [ns / 1e6 for ns in finding.gain] == pytest.approx([933, 933], abs=1)
    why = {
        row["rank"]: (row["late_phase"], row["late_what"]) for row in table(job("torchrec-v100-straggler-4r"), "ranks")
    }
    assert why == dict.fromkeys((0, 1, 3), ("", "")) | {2: ("## forward ##", "Python in # running sparse arch")}


def test_the_late_rank_of_nanogpt_is_late_in_its_optimizer() -> None:
    finding = straggler("nanogpt-h100-8r")
    assert (finding.subject.phase, finding.measures["category"]) == ("optimizer", "host-bound")
    assert finding.measures["excess_ns"] == pytest.approx(5.37e6, abs=5e3)


@pytest.mark.parametrize(
    "name", ["nanogpt-h100-8r", "torchrec-v100-straggler-4r", "dlrm-v100-8r", "torchrec-v100-ab/a"]
)
def test_the_clocks_of_one_machine_agree_within_50_us(name: str) -> None:
    rows = table(job(name), "ranks")
    assert all(abs(row["offset_ns"]) < 50_000 and row["offset_pm_ns"] < 15_000 for row in rows)


def without(trace: Trace, gone: int) -> Trace:
    """The trace without one event."""
    events = trace.events
    keep = np.arange(len(events)) != gone
    columns = {f.name: getattr(events, f.name) for f in fields(Events)}
    shorter = {name: column[keep] for name, column in columns.items() if isinstance(column, np.ndarray)}
    shorter |= {name: _without(columns[name], gone) for name in ("messages", "stacks", "waits")}
    return replace(trace, events=replace(events, **shorter))


def _without(side: Any, gone: int) -> Any:
    keep = side.row != gone
    columns = {f.name: getattr(side, f.name)[keep] for f in fields(side)}
    return replace(side, **columns | {"row": columns["row"] - (columns["row"] > gone)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "silent"), [("nanogpt-h100-8r", 2), ("torchrec-v100-straggler-4r", 4), ("dlrm-v100-8r", 1)]
)
def test_any_call_left_out_by_one_rank_is_found_but_at_the_end_of_its_window(name: str, silent: int) -> None:
    """The last ones of a kind in a window could have been cut off."""
    run = job(name)
    assert table(run, "desync") == []
    rank = 1
    calls = collective_calls(run.traces[rank])
    named = []
    for row in calls.rows.tolist():
        traces = (*run.traces[:rank], without(run.traces[rank], row), *run.traces[rank + 1 :])
        named.append([one["rank"] for one in table(replace(run, traces=traces), "desync") if one["how"]])
    assert named == [[rank]] * (len(calls) - silent) + [[]] * silent
