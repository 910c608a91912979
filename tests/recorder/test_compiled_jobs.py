"""A job that compiles is recorded as it is: it compiles what it would alone, and computes the same losses.

Whatever part of a loop is compiled, and whenever; backends are in `test_recording_changes_nothing.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient

pytest.importorskip("torch", reason="jobs are torch's")

pytestmark = [pytest.mark.torch, pytest.mark.slow]

JOB = """
import hashlib, sys, torch
from torch import nn
from torch._dynamo.utils import counters
kind = sys.argv[1]
torch.manual_seed(0)
torch.set_num_threads(1)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x, mask=None, *, scale=1.0):
        return x + self.linear(x) * scale

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x, scale=1.0):
        for block in self.blocks:
            x = block(x, scale=scale)
        return x

net = model = Net()
optimizer = torch.optim.AdamW(net.parameters())
compiled = dict(backend="aot_eager")

def loss_of(x):
    return model(x).square().mean()

def step_of(x):
    loss = loss_of(x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

if kind == "loss":
    loss_of = torch.compile(loss_of, **compiled)
elif kind == "method":
    net.compile(**compiled)
elif kind == "blocks":
    for block in net.blocks:
        block.compile(**compiled)
elif kind == "forward":
    net.forward = torch.compile(net.forward, **compiled)
elif kind != "late":
    model = torch.compile(net, **compiled)
losses = []
for number in range(120):
    if kind == "late" and number == 20:
        model = torch.compile(net, **compiled)
    losses.append(step_of(torch.randn(4 + number % 3 * (kind == "shapes"), 8, 16)).item())
graphs = counters["stats"]["unique_graphs"]
print(f"{graphs} graphs, {hashlib.sha1(repr(losses).encode()).hexdigest()}", flush=True)
"""
KINDS = ("shapes", "method", "blocks", "forward", "loss", "late")


def output(folder: Path, *words: str) -> str:
    """What a command prints last, with empty caches of compiled code: full ones hide what breaks compiling."""
    cache = folder / "cache"
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(170),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_job_compiles_and_computes_what_it_does_alone(kind: str, tmp_path: Path) -> None:
    for name in ("alone", "recorded"):
        (tmp_path / name).mkdir()
    (tmp_path / "job.py").write_text(JOB)
    job = (sys.executable, str(tmp_path / "job.py"), kind)
    recording = (sys.executable, "-m", "traceq", "record", "--then", "continue", "--steps", "16", "--out", "run", "--")

    alone, recorded = output(tmp_path / "alone", *job), output(tmp_path / "recorded", *recording, *job)

    assert recorded == alone
    assert '"status":"complete"' in (tmp_path / "recorded" / "run" / "run.json").read_text().replace(" ", "")
