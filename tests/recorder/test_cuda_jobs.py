"""Unedited jobs on a real GPU: captures of CUDA graphs stay valid, and steps have the device's time.

`test_cuda_stand_in.py` has what shows without one; `benchmarks/gpu.sh` runs these where there is one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from paths import TESTS

pytest.importorskip("torch", reason="recording needs torch")

import torch

from traceq.facts.events.device_work import device_work
from traceq.recorder.timing.stopwatch import CAPTURED_STEP
from traceq.runs.read import read
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import StepLine, read_lines

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
JOB = TESTS / "support" / "cuda_job.py"


def record(folder: Path, how: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Record the job into `folder`/run."""
    traceq = [sys.executable, "-m", "traceq", "record", "--out", str(folder / "run"), *options]
    command = [*traceq, "--", sys.executable, str(JOB), how]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("how", ["plain", "graphed", "compiled", "offloaded"])
def test_a_job_has_the_time_and_the_kernels_of_its_device(how: str, tmp_path: Path) -> None:
    done = record(tmp_path, how, "--steps", "28", "--toggle", "@optimizer=foreach,fused")
    assert done.returncode == 0, done.stderr
    assert ("no parameter is on a GPU" in done.stderr) is (how == "offloaded")
    assert "saw no work of the GPU" not in done.stderr
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert (manifest.status, manifest.environment["device"]) == ("complete", "cuda")
    of_baseline, of_fused = (str(manifest.fact("loss", arm)) for arm in manifest.arms)
    assert ", sd " in of_baseline
    assert not of_baseline.endswith(", sd 0")
    assert "(standard error " in of_fused
    assert "(standard error 0)" not in of_fused
    lines = [line for line in read_lines(tmp_path / "run" / "steps" / "rank0.jsonl") if isinstance(line, StepLine)]
    assert all(line.device_ns > 0 for line in lines)
    forward = [line.device_phases["forward"] for line in lines if how != "offloaded" and line.index]
    assert all(each > 0 for each in forward)
    for arm in manifest.arms:
        assert len(device_work(read(tmp_path / "run" / arm.name).traces[0]))


def test_a_captured_step_stays_valid_and_ends_the_recording(tmp_path: Path) -> None:
    done = record(tmp_path, "captured", "--then", "continue")
    assert "trained" in done.stdout, done.stderr
    assert CAPTURED_STEP in done.stderr
