"""Measures in trackers of experiments, by the real packages where these are installed, without a server."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from made_history import write_run
from terminal import Outcome, traceq


def add(folder: Path, sink: str) -> Outcome:
    run = write_run(folder / "run", np.random.default_rng(1), number=1, has_sync=True, commit="c0ffee")
    return traceq("history", "add", run, "--store", folder / "store", "--branch", "main", "--to", sink)


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    outcome = add(tmp_path, "aim")
    assert (outcome.code, "wandb, mlflow, otlp" in outcome.err) == (2, True)
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


class Collector(BaseHTTPRequestHandler):
    """An OpenTelemetry collector that keeps what it is sent, or refuses it."""

    status, bodies = 200, list[bytes]()

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("status", [200, 400])
def test_a_collector_is_sent_gauges_or_its_refusal_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the exporter of OTLP is not installed")
    monkeypatch.setattr(Collector, "status", status)
    monkeypatch.setattr(Collector, "bodies", [])
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        outcome = add(tmp_path, "otlp")
        server.shutdown()
        thread.join()
    assert outcome.code == (0 if status == 200 else 1)
    assert all(text in Collector.bodies[0] for text in (b"traceq.scalar_syncs", b"traceq.step_ms", b"c0ffee"))
