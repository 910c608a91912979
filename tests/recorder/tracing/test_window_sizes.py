"""Profiled windows of arms that take turns: one step each on a CPU, two on CUDA, where the first is not whole."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch

import traceq
from traceq.model import Arm
from traceq.recorder.spec.plan import Plan, PlannedArm
from traceq.recorder.tracing import traced_steps
from traceq.recorder.tracing.traced_steps import num_traced_steps, window_sizes
from traceq.runs.run_folder import RunFolder

pytestmark = pytest.mark.torch

ARMS = tuple(PlannedArm(Arm(name, "")) for name in ("off", "on"))
ON_CPU = Plan(recipe="x", run_id="id", out="out", device="cpu", num_ranks=2, steps=16, trace_steps=3, seed=7, arms=ARMS)


def test_a_window_has_one_whole_step_where_arms_take_turns() -> None:
    on_cuda = replace(ON_CPU, device="cuda")
    assert (window_sizes(ON_CPU), window_sizes(on_cuda)) == ([1, 1, 1], [2, 2, 2])
    num_between = 1 + 3
    assert num_traced_steps(ON_CPU) == 2 * (3 + 3 * 3) + num_between
    assert num_traced_steps(on_cuda) == 2 * (3 + 3 * 4) + num_between
    assert window_sizes(replace(on_cuda, arms=ARMS[:1])) == [3]


@pytest.mark.slow
def test_what_every_second_step_does_is_in_traces_of_each_arm(tmp_path: Path) -> None:
    with traceq.record(tmp_path / "run", arms=("off", "on"), steps=16, trace_steps=2) as rec:
        for number in rec.steps(iter(range(1000))):
            if rec.rank.progress.is_done:
                break
            with rec.phase("forward"):
                torch.ones(8).sin() if number % 2 else torch.ones(8).cos()
    for arm in ("off", "on"):
        document = json.loads(gzip.decompress(RunFolder(tmp_path / "run").trace(arm, 0).read_bytes()))
        names = [event["name"] for event in document["traceEvents"]]
        assert (names.count("aten::sin"), names.count("aten::cos")) == (1, 1), arm


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="forces the windows of CUDA on a CPU")
def test_windows_of_two_steps_of_each_arm_in_turns_are_one_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced_steps, "window_sizes", lambda plan: [2] * plan.trace_steps)
    with traceq.record(tmp_path / "run", arms=("off", "on"), steps=16, trace_steps=3) as rec:
        model = torch.nn.Linear(8, 8)
        for batch in rec.steps(torch.ones(2, 8) for _ in range(1000)):
            if rec.rank.progress.is_done:
                break
            with rec.phase("forward"):
                model(batch).sum().backward()
    marks = {}
    for arm in ("off", "on"):
        document = json.loads(gzip.decompress(RunFolder(tmp_path / "run").trace(arm, 0).read_bytes()))
        marks |= {
            event["ts"]: (arm, int(event["name"].partition("#")[2]))
            for event in document["traceEvents"]
            if event.get("name", "").startswith("ProfilerStep#") and event["ph"] == "X"
        }
    in_time = [marks[ts] for ts in sorted(marks)]
    assert [arm for arm, _ in in_time] == ["off", "off", "on", "on"] * 3
    for arm in ("off", "on"):
        numbers = [number for of, number in in_time if of == arm]
        assert [after - before > 1 for before, after in pairwise(numbers)] == [False, True] * 2 + [False]
    rows = traceq.analyze(traceq.read(tmp_path / "run" / "on"), "steps").tables[0].to_dicts()
    assert len(rows) == 6
    assert not any(row["partial"] for row in rows)  # without a device, the first step of a window is as whole as any
