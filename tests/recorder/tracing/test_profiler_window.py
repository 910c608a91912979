"""A window is on disk when its steps have run, if it is wanted then."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the profiler is torch's")

import torch

from traceq.recorder.spec.phases import Phases
from traceq.recorder.tracing.line_marks import read_rows
from traceq.recorder.tracing.profiler_window import WARMUP_STEPS, Window, profiled_steps

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_window_that_is_not_wanted_is_not_written(is_wanted: bool, tmp_path: Path) -> None:
    """As that of a step with an evaluation, which is recorded again: of its events writing alone takes minutes."""
    window = Window(tmp_path / "window.json.gz", 1)
    ended: list[int] = []
    for index in profiled_steps(window, torch.device("cpu"), Phases(), lambda: bool(ended) and is_wanted):
        torch.ones(2).sum()
        if index == WARMUP_STEPS:
            ended.append(index)  # only what is known after the last step counts
    assert window.path.exists() == is_wanted


@pytest.mark.parametrize("memory", [True, False])
def test_allocations_are_recorded_only_if_asked_for(memory: bool, tmp_path: Path) -> None:
    """Torch warns on the job's stderr when a block is freed that it did not see allocated."""
    window = Window(tmp_path / "window.json.gz", 1, stacks=True, memory=memory)
    for _ in profiled_steps(window, torch.device("cpu"), Phases()):
        torch.ones(2).sum()
    steps = [row for row in read_rows(window.path) if row.name.startswith("ProfilerStep#")]
    assert len(steps) == 1 + memory  # also the last warm-up step, of which blocks are freed in the step
    assert any(row.args.size for row in read_rows(window.path)) == memory
