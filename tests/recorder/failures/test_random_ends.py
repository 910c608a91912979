"""A process whose loop is recorded ends as it would without traceq, in any way, in any step. `make faults`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from launching import torchrun
from paths import ROOT, TESTS
from patience import patient
from recording import MAIN

from traceq.runs.run_folder import RunFolder

pytest.importorskip("torch", reason="recording needs torch")
pytestmark = [pytest.mark.torch, pytest.mark.faults]

KINDS = ("plain", "transformers", "lightning")
CODES = {"raise": 1, "exit": 3, "_exit": 3, "stop": 0, "fewer": 0, "SIGTERM": -15, "SIGKILL": -9, "SIGINT": -2}
CAUSES = {"raise": "ValueError: bad batch", "exit": "SystemExit: 3", "SIGINT": "KeyboardInterrupt"}
AT_ONCE = ("_exit", "SIGTERM", "SIGKILL")
NEEDED = 25
"""Steps of a recording with these options, before which it is not complete."""


def run(words: list[str], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command with `folder`/scratch for what is temporary."""
    (folder / "scratch").mkdir()
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "scratch")}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=patient(seconds)
    )


def left_over(folder: Path) -> list[Path]:
    return [*(folder / "scratch").glob("traceq-*"), *folder.rglob("*.part")]


@pytest.mark.parametrize("seed", range(60))
def test_a_loop_that_ends_at_a_random_step_ends_as_without_traceq(seed: int, tmp_path: Path) -> None:
    kind, how = KINDS[seed % len(KINDS)], list(CODES)[seed // len(KINDS) % len(CODES)]
    if kind != "plain" and find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed")
    if (kind, how) == ("lightning", "SIGTERM"):
        pytest.skip("Lightning has a handler of its own")
    last = random.Random(seed).randint(1, 30)
    job = TESTS / "support/trainers/ending_job.py"
    done = run([sys.executable, str(job), kind, how, str(last)], tmp_path, seconds=60)
    codes = {CODES[how], 130, 1} if how == "SIGINT" else {CODES[how]}  # Lightning's own is 1
    assert done.returncode in codes, done.stderr
    manifest = RunFolder(tmp_path / "run").read_manifest()
    if last > NEEDED:
        assert manifest.status == "complete"
    elif how in AT_ONCE:
        assert manifest.status == "recording"
    elif how in CAUSES:
        assert manifest.status == ("interrupted" if how == "SIGINT" else "failed")
        assert manifest.fault.startswith(CAUSES[how])
    elif last < NEEDED - 1:
        assert manifest.status == "failed"
        assert f" of {NEEDED} steps" in manifest.fault
        assert "the recording is incomplete" in done.stderr
    if done.returncode == 0:
        assert json.loads(done.stdout.splitlines()[-1]) == {"profiler": False, "gc": True, "tracer": True}
    if how not in AT_ONCE:
        assert left_over(tmp_path) == []


TWO_RANKS = """
import os, random, signal, sys
import torch
import torch.distributed as dist

rank, last, how = int(os.environ["RANK"]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters())
for step in range(400):
    if rank == int(sys.argv[1]) and step == last:
        if how == "raise":
            raise ValueError("bad batch")
        if how == "exit":
            sys.exit(3)
        if how == "_exit":
            os._exit(3)
        os.kill(os.getpid(), signal.Signals[how])
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ENDS = ("raise", "exit", "_exit", "SIGKILL", "SIGSEGV", "SIGTERM")
WHY = {"raise": "ValueError: bad batch", "exit": "the loop ended after "}


@pytest.mark.parametrize("seed", range(60))
def test_of_two_ranks_the_one_that_ends_at_a_random_step_is_the_cause(seed: int, tmp_path: Path) -> None:
    draw, how = random.Random(seed), ENDS[seed % len(ENDS)]
    ended, last = draw.randrange(2), draw.randint(0, 60)
    (tmp_path / "job.py").write_text(TWO_RANKS)
    words = ["--steps", "32", "--trace-steps", "1", "--", *torchrun(2, "job.py", str(ended), str(last), how)]
    done = run([*MAIN[:-2], "--out", "run", *words], tmp_path, seconds=90)
    folder = RunFolder(tmp_path / "run")
    if done.returncode == 0:
        assert folder.is_complete
    elif folder.manifest_path.exists():
        manifest = folder.read_manifest()
        assert manifest.status in ("failed", "interrupted"), done.stderr
        assert manifest.fault in done.stderr.splitlines()[-1]
        assert manifest.fault.startswith(f"rank {ended}: {WHY.get(how, '')}"), done.stderr
    else:
        assert "nothing was recorded" in done.stderr.splitlines()[-1]
    assert left_over(tmp_path) == []
