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
from paths import ROOT, TESTS
from patience import patient

from traceq.runs.run_folder import RunFolder

pytest.importorskip("torch", reason="recording needs torch")
pytestmark = [pytest.mark.torch, pytest.mark.faults]

KINDS = ("plain", "transformers", "lightning")
CODES = {"raise": 1, "exit": 3, "_exit": 3, "stop": 0, "fewer": 0, "SIGTERM": -15, "SIGKILL": -9, "SIGINT": -2}
CAUSES = {"raise": "ValueError: bad batch", "exit": "SystemExit: 3", "SIGINT": "KeyboardInterrupt"}
AT_ONCE = ("_exit", "SIGTERM", "SIGKILL")
NEEDED = 25
"""Steps of a recording with these options, before which it is not complete."""


@pytest.mark.parametrize("seed", range(60))
def test_a_loop_that_ends_at_a_random_step_ends_as_without_traceq(seed: int, tmp_path: Path) -> None:
    kind, how = KINDS[seed % len(KINDS)], list(CODES)[seed // len(KINDS) % len(CODES)]
    if kind != "plain" and find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed")
    if (kind, how) == ("lightning", "SIGTERM"):
        pytest.skip("Lightning has a handler of its own")
    last = random.Random(seed).randint(1, 30)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)}
    done = subprocess.run(
        [sys.executable, str(TESTS / "support/trainers/ending_job.py"), kind, how, str(last)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(60),
    )
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
        assert not list(scratch.glob("traceq-*"))
        assert not list((tmp_path / "run").rglob("*.part"))
