"""Measures in trackers of experiments, by the real packages where these are installed, without a server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_history import write_run
from terminal import Outcome, traceq


def add(folder: Path, sink: str) -> Outcome:
    run = write_run(folder / "run", np.random.default_rng(1), number=1, has_sync=True, commit="c0ffee")
    return traceq("history", "add", run, "--store", folder / "store", "--branch", "main", "--to", sink)


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    outcome = add(tmp_path, "aim")
    assert (outcome.code, "wandb, mlflow" in outcome.err) == (2, True)
    assert not (tmp_path / "store").exists()


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_a_run_with_metrics_and_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    assert add(tmp_path, "mlflow").code == 0
    (run,) = mlflow.search_runs(output_format="list")
    assert run.data.metrics["scalar syncs"] == 1
    assert run.data.metrics["step ms"] == pytest.approx(40, abs=0.5)
    assert (run.data.tags["branch"], run.data.tags["commit"]) == ("main", "c0ffee")


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_a_run_to_be_sent_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    assert add(tmp_path, "wandb").code == 0
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = kept.read_bytes()
    assert all(text in content for text in (b"scalar syncs", b"step ms", b"c0ffee"))
