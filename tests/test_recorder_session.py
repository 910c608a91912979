"""A loop of one's own is recorded by two lines around it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch

import traceq
from traceq.recorder.session import Session
from traceq.runs.embedded import decode
from traceq.runs.layout import RunFolder
from traceq.runs.samples import read_pairs

pytestmark = [pytest.mark.torch, pytest.mark.skipif(torch.cuda.is_available(), reason="counts the steps of a CPU")]

NEEDED = 2 * 16 + 2 + 16 + 3 + 4  # a group, its settling pair, warm-up, a step with stacks, a window of two


def train(recording: Session, num_steps: int) -> int:
    model = torch.nn.Linear(8, 8)
    num_seen = 0
    for batch in recording.steps(torch.ones(2, 8) for _ in range(num_steps)):
        with recording.phase("forward"):
            loss = model(batch).square().mean()
        with recording.phase("bwd"):
            loss.backward()
        num_seen += 1
    return num_seen


def test_a_loop_leaves_a_run_with_one_arm(tmp_path: Path) -> None:
    with traceq.record(tmp_path / "run", arm="mine", steps=32, trace_steps=2) as recording:
        assert train(recording, NEEDED + 5) == NEEDED + 5
    folder = RunFolder(tmp_path / "run")
    manifest = folder.read_manifest()
    assert (manifest.status, manifest.baseline, manifest.num_ranks) == ("complete", "mine", 1)
    assert manifest.phases == ("dataload_wait", "forward", "bwd")
    (control,) = read_pairs(folder.steps)
    assert (control.a, control.b, control.first_ns.shape) == ("mine", "mine", (1, 16))
    embedded = decode(json.loads(gzip.decompress(folder.trace("mine", 0).read_bytes()))["traceq"])
    assert embedded.lines is not None
    line = embedded.lines.lines[embedded.lines.table["forward|aten::linear"][0]]
    assert line.startswith("test_recorder_session.py:")
    assert line.endswith(" train")


def test_a_loop_that_ends_early_says_how_far_it_came(tmp_path: Path) -> None:
    with traceq.record(tmp_path / "run", steps=32, trace_steps=2) as recording:
        train(recording, 30)
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert (manifest.status, manifest.fault) == ("failed", f"the loop ended after 30 of {NEEDED} steps")


def test_an_exception_in_the_loop_is_noted_and_passed_on(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), traceq.record(tmp_path / "run") as recording:
        _ = [1 // batch for batch in recording.steps([2, 1, 0])]
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert (manifest.status, manifest.fault) == ("failed", "ZeroDivisionError: integer division or modulo by zero")
