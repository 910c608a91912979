"""The same story for real: a repository of twelve commits, each recorded as a job and added to the store."""

from __future__ import annotations

import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from recording import MAIN
from terminal import traceq

from traceq.history.events import history_of

TRAIN = """
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
x, y, more = torch.randn(256, 512), torch.randint(0, 10, (256,)), torch.randn(512, 64)
losses = []
for step in range(400):
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SYNC, WORK = "    losses.append(loss.item())\n", "    torch.softmax(x @ more, 1)\n"
NUM, WITH_SYNC, WITH_WORK = 12, 4, 8


def commit(folder: Path, number: int) -> str:
    """Commit the trainer as it is at that commit; return its hash."""
    lines = SYNC * (number >= WITH_SYNC) + WORK * (number >= WITH_WORK)
    (folder / "train.py").write_text(f"{TRAIN}{lines}# commit {number}\n")
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["add", "train.py"], [*who, "commit", "-qm", f"commit {number}"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.torch
def test_history_finds_the_added_sync_and_work_with_commit_and_line_and_blames_no_other(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-qb", "main", str(tmp_path)], check=True)
    commits = []
    with chdir(tmp_path):
        for number in range(NUM):
            commits.append(commit(tmp_path, number).strip())
            run = f"traceq-history/runs/{number}"
            done = subprocess.run(
                [*MAIN, "--out", run, "--", sys.executable, "train.py"], capture_output=True, check=False
            )
            assert done.returncode == 0, done.stderr
            assert traceq("history", "add", run).code == 0
        shown = traceq("history", "show", "--bisect").out
        events = history_of(tmp_path / "traceq-history").events
    print(shown)  # noqa: T201
    sync, work = events
    assert [event.after.row.commit for event in events] == [commits[WITH_SYNC], commits[WITH_WORK]]
    assert "train.py:16" in sync.cause
    assert "train.py:17" in work.cause
    assert all(f"commit {number}" in shown for number in (WITH_SYNC, WITH_WORK))
