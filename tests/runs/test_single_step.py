"""`show --step K`: one step alone, with the window and the work that it has in the whole trace."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from builder import OTHER, annotation, build, comms, frame, kernel, launch, memcpy, op, step, table
from paths import ROOT, TRACES
from terminal import traceq

from traceq.analysis.registry import analyze_all
from traceq.errors import UsageFault
from traceq.facts.timeline.single_step import only_step
from traceq.facts.timeline.steps import steps
from traceq.model import Run, Trace
from traceq.runs.read import read

JOB = ROOT / "fixtures" / "example" / "job"
REAL = ("ddp-a100/rank0", "torchrec-v100-ab/a/rank0", "nanogpt-h100-8r/rank0", "gloo-cpu/rank34")


def two_steps() -> Trace:
    """The device lags: the kernel of step 4 that runs last ends at 170, when step 5 has begun on the host."""
    return build(
        annotation("epoch", 0, 300),
        frame("train.py(3): main", 0, 300),
        step(0, 100, 4),
        op("aten::mm", 10, 10),
        launch(12, 2, 1),
        comms("allreduce", 30, 5, (10, 10)),
        launch(50, 2, 2),
        step(100, 100, 5),
        op("aten::add", 110, 10),
        launch(112, 2, 3),
        op("aten::rand", 120, 5, tid=OTHER),
        kernel("gemm", 20, 60, 1),
        kernel("gemm", 100, 70, 2),
        kernel("add", 180, 40, 3),
        memcpy("HtoD (Pinned -> Device)", 60, 10),
    )


def of(trace: Trace, number: int) -> Trace:
    (cut,) = only_step(Run("a.json", (trace,)), number).traces
    return cut


def names(trace: Trace) -> list[str]:
    return sorted(trace.events.text(row) for row in range(len(trace.events)))


def test_a_step_has_what_its_host_began_and_launched_wherever_that_ran() -> None:
    assert names(of(two_steps(), 4)) == [
        "Memcpy HtoD (Pinned -> Device)",
        "ProfilerStep#4",
        "aten::mm",
        "cudaLaunchKernel",
        "cudaLaunchKernel",
        "epoch",
        "gemm",
        "gemm",
        "record_param_comms",
        "train.py(3): main",
    ]
    assert names(of(two_steps(), 5)) == [
        "ProfilerStep#5",
        "add",
        "aten::add",
        "aten::rand",
        "cudaLaunchKernel",
        "epoch",
        "train.py(3): main",
    ]


@pytest.mark.parametrize(("number", "window_us"), [(4, (0, 170)), (5, (170, 220))])
def test_its_window_is_that_of_the_whole_trace(number: int, window_us: tuple[int, int]) -> None:
    result = steps(of(two_steps(), number))
    start = int(two_steps().events.ts.min())
    assert ((result.window[0] - start) // 1000).tolist() == list(window_us)
    assert (result.by_device, result.names) == (True, (f"ProfilerStep#{number}",))


def test_the_partition_adds_up_to_the_window() -> None:
    assert sum(row["dur_ns"] for row in table(of(two_steps(), 4), "partition")) == 170_000
    cells = {row["category"]: row["dur_ns"] for row in table(of(two_steps(), 5), "partition")}
    assert cells == {"compute": 40_000, "launch_latency": 10_000}


def test_messages_keep_the_events_they_are_about() -> None:
    (row,) = table(of(two_steps(), 4), "collectives")
    assert (row["name"], row["num"], row["bytes"]) == ("all_reduce", 1, 40)
    assert table(of(two_steps(), 5), "collectives") == []


def test_an_unknown_step_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageFault, match=r"^a\.json: .* 9; expected one of 4-5$"):
        of(two_steps(), 9)
    with pytest.raises(UsageFault, match="no step 0; expected a trace"):
        of(build(op("aten::mm", 1, 2)), 0)


def test_ranks_that_lack_the_step_are_left_out_and_named() -> None:
    other = replace(build(step(0, 100, 4), op("aten::mm", 1, 2)), rank=1)
    result = only_step(Run("job", (two_steps(), other)), 5)
    assert (result.ranks, result.caveats[-1].code) == ((0,), "no_such_step")
    assert result.caveats[-1].text.startswith("no step 5 on rank 1")


def test_show_says_which_step_it_is_about() -> None:
    shown = traceq("show", JOB, "--step", "2", "--full")
    assert "fixtures/example/job · step 2 · " in shown.out
    assert "whole trace" not in shown.out
    assert "sum of 2 ranks, step 2" in shown.out
    result = json.loads(traceq("show", JOB, "--step", "2", "--json").out)
    assert result["source"]["step"] == 2
    assert [(row["rank"], row["name"]) for row in result["steps"]] == [(0, "ProfilerStep#2"), (1, "ProfilerStep#2")]
    refused = traceq("show", JOB, "--step", "9")
    assert refused.code == 2
    assert refused.err.startswith(f"traceq: {JOB}: no step 9; ")
    assert refused.err.endswith(" 0-3\n")


def test_every_analysis_answers_about_one_step() -> None:
    run = read(JOB)
    whole, cut = ({one.name: one for one in analyze_all(each)} for each in (run, only_step(run, 1)))
    assert whole.keys() == cut.keys()
    for name in ("syncs", "collectives", "kernels", "memcpy", "launches"):
        assert len(cut[name].tables[0].rows) <= len(whole[name].tables[0].rows)


@pytest.mark.parametrize("name", REAL)
def test_steps_of_a_real_trace_share_out_its_work(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no traces in {TRACES}")
    run = read(path)
    entries = steps(run.traces[0])
    launched: Counter[str] = Counter()
    for index, number in enumerate(entries.number.tolist()):
        cut = only_step(run, number)
        window_ns = int(entries.window[index, 1] - entries.window[index, 0])
        assert sum(row["dur_ns"] for row in table(cut, "partition")) == window_ns
        launched += _num_by_name(table(cut, "kernels"))
        assert _nearly(_cells(table(run, "partition"), number), _cells(table(cut, "partition"), number), window_ns)
    assert launched <= _num_by_name(table(run, "kernels"))


def _num_by_name(rows: list[dict[str, Any]]) -> Counter[str]:
    result: Counter[str] = Counter()
    for row in rows:
        result[row["name"]] += row["num"]
    return result


def _cells(rows: list[dict[str, Any]], number: int) -> Counter[tuple[str, str]]:
    return Counter({(row["phase"], row["category"]): row["dur_ns"] for row in rows if row["step"] == number})


def _nearly(whole: Counter[tuple[str, str]], cut: Counter[tuple[str, str]], window_ns: int) -> bool:
    """Alike but for instants at which the host is in another step, or work of another step runs: 1 % of the window."""
    return (whole - cut).total() <= 0.01 * window_ns
