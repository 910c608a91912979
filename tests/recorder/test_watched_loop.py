"""A loop that is watched without a launcher: each step is a row, and a process of its own says what began."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import numpy as np
import torch
from paths import DOCS

import traceq
from traceq.errors import UsageFault
from traceq.integrations.trainer_recording import TrainerRecording
from traceq.long_runs.onsets import SLOW_RANK
from traceq.long_runs.step_store import REGULAR, RowReader
from traceq.long_runs.watch_folder import HEALTHY, WatchFolder

pytestmark = pytest.mark.torch

LOOP = """
    import sys, time, torch, traceq

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    is_late = torch.distributed.get_rank() == 1
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    with traceq.watch(sys.argv[1]) as run:
        for step, batch in enumerate(run.steps([torch.randn(256, 256)] * 5500)):
            with run.phase("forward"):
                loss = model(batch).square().mean()
            with run.phase("backward"):
                loss.backward()
            if step > 4000 and is_late:
                time.sleep(0.01)
    torch.distributed.destroy_process_group()
"""


def test_each_step_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "watch.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    given = {"traceq": traceq, "loader": torch.randn(40, 64), "model": torch.nn.Linear(64, 1)}
    exec(compile(block, "watch.md", "exec"), given)
    rows = RowReader(tmp_path / "run" / "steps", 0).take()
    assert list(rows["step"]) == list(range(40))
    assert (rows["flags"] == REGULAR).all()
    assert (rows[["loader", "forward", "backward"]].tolist() > np.zeros(3)).all()
    assert (rows["wall"] > rows["loader"] + rows["forward"] + rows["backward"]).all()


def test_a_step_that_is_excluded_does_not_count(tmp_path: Path) -> None:
    with traceq.watch(tmp_path / "run", device="cpu") as run:
        for number in run.steps(range(40)):
            if number == 20:
                run.exclude_step()
    rows = RowReader(run.folder / "steps", 0).take()
    assert list(rows["flags"]) == [REGULAR * (number != 20) for number in range(40)]


def test_a_fault_of_the_watch_is_one_line_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("traceq.recorder.watched_steps.EVERY_S", 0.0)
    with traceq.watch(tmp_path / "run", device="cpu") as run:
        numbers = []
        for number in run.steps(range(40)):
            numbers.append(number)
            if number == 20:
                shutil.rmtree(run.folder)
    assert numbers == list(range(40))
    assert capfd.readouterr().err.count("traceq: rank 0: no more steps are watched: FileNotFoundError") == 1


def test_callbacks_of_a_trainer_watch_its_steps(tmp_path: Path) -> None:
    training = TrainerRecording(tmp_path / "run", {"watch": True, "device": "cpu"})
    with pytest.raises(UsageFault, match="no arms"):
        training.toggle(object(), "name", {})
    training.begin()
    for _ in range(20):
        training.set_phase("forward")
        training.end_step()
    training.close()
    assert len(RowReader(tmp_path / "run" / "steps", 0).take()) == 20


def test_ranks_without_a_group_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageFault, match="init_process_group"), traceq.watch(tmp_path / "run"):
        pass


@pytest.mark.slow
def test_a_slow_rank_is_said_and_traced(tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "run"
    script.write_text(textwrap.dedent(LOOP))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, str(script), str(out)], capture_output=True, text=True, check=True)
    folder = WatchFolder(out)
    assert [(onset.kind, onset.ranks) for onset in folder.read_onsets()] == [(SLOW_RANK, (1,))]
    assert folder.has_captured(HEALTHY)
    assert f"traceq: onset-1: traceq diff {out / HEALTHY} {out / 'onset-1'}" in done.stderr
