"""Recordings of the trainers themselves, made by torch's profiler on a CPU: their findings blame the right thing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="recording needs torch")

from paths import TESTS

from traceq.analysis.registry import sheet
from traceq.report import Sheet
from traceq.runs.read import read

JOBS = TESTS / "support" / "trainers"
TIMEOUT_S = 300
pytestmark = pytest.mark.torch


def run(*command: str) -> str:
    """What a job prints on one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lightnings_closure_is_not_the_optimizers_time(tmp_path: Path) -> None:
    """Forward and backward run inside Optimizer.step; the job times each update from its end to the batch's."""
    pytest.importorskip("lightning", reason="lightning is not installed")
    out = run(str(JOBS / "lightning_job.py"), str(tmp_path / "trace.json"))
    (line,) = (line for line in out.splitlines() if line.startswith("updates"))
    updates = [int(ns) for ns in line.split()[1:]]
    result = sheet(read(tmp_path / "trace.json"))
    (optimizer,) = result.report("optimizer").table("optimizers").to_dicts()
    (finding,) = result.report("optimizer").findings
    assert (optimizer["num"], optimizer["implementation"]) == (len(updates), "for-loop")
    assert optimizer["window_ns"] == pytest.approx(sum(updates), rel=0.2)
    assert finding.ns == round(optimizer["window_ns"] / len(updates))
    cells = result.report("partition").table("partition").to_dicts()
    by_phase = {name: sum(row["dur_ns"] for row in cells if row["phase"] == name) for name in ("backward", "optimizer")}
    assert by_phase["optimizer"] == pytest.approx(optimizer["window_ns"], rel=0.02)
    assert by_phase["backward"] > 0


def transformers_sheet(folder: Path, tokens: str) -> Sheet:
    """Two ranks of the Trainer, two micro-batches a step."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    run(*launcher, str(JOBS / "transformers_job.py"), str(folder), tokens)
    return sheet(read(folder))


def test_the_trainers_count_of_tokens_is_no_metric(tmp_path: Path) -> None:
    """Nor are accumulated micro-batches a deviation: under no_sync neither gradients nor buffers are exchanged."""
    result = transformers_sheet(tmp_path, "average")
    rows = result.report("collectives").table("collectives").to_dicts()
    gathers = [row for row in rows if (row["name"], row["dtype"]) == ("all_gather", "int64")]
    assert {row["role"] for row in gathers} == {"token_count"}
    assert not {"metric_gathers", "strategy"} & {finding.code for finding in result.findings}
    checked = result.report("strategy").table("strategy_checks").to_dicts()
    assert {row["role"]: row["verdict"] for row in checked if row["rank"] == 0} == {
        "gradient_reduction": "exact",
        "buffer_broadcast": "exact",
        "unused_map": "explained",
        "token_count": "explained",
    }


def test_without_the_count_the_trainer_gathers_nothing(tmp_path: Path) -> None:
    """The remedy is the right one: it removes the collective."""
    result = transformers_sheet(tmp_path, "alone")
    rows = result.report("collectives").table("collectives").to_dicts()
    assert not [row for row in rows if row["role"] in ("token_count", "metric")]
