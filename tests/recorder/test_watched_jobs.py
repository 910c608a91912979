"""`traceq watch -- COMMAND` times every step of a job that knows nothing of it, and traces some when asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from launching import free_port, start_process, torchrun, wait_for_all
from paths import ROOT, TESTS
from patience import patient

pytest.importorskip("torch", reason="recording needs torch")

from traceq.long_runs.onsets import SLOW_RANK
from traceq.long_runs.run_watch import capture_now
from traceq.long_runs.status import read_status
from traceq.long_runs.step_store import CAPTURED, REGULAR, RowReader
from traceq.long_runs.watch_folder import HEALTHY, WatchFolder

pytestmark = pytest.mark.torch

JOB = TESTS / "support" / "watched_job.py"
TRACEQ = [sys.executable, "-c", "from traceq.cli import main; main()"]
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")},
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
}


def start(out: Path, *command: str) -> subprocess.Popen[str]:
    words = [*TRACEQ, "watch", "--out", str(out), "--", *command]
    return subprocess.Popen(words, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def traceq(*words: str) -> str:
    done = subprocess.run([*TRACEQ, *words], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_until(process: subprocess.Popen[str], path: Path) -> None:
    deadline = time.monotonic() + patient(60)
    while not (path.exists() and (path.is_dir() or path.stat().st_size)):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def test_every_step_is_on_disk_and_the_job_ends_as_it_would(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(run, sys.executable, str(JOB), "300", "300", "evaluations")
    stdout, stderr = process.communicate(timeout=patient(60))
    assert (process.returncode, stdout) == (0, ""), stderr
    assert "step: batch, forward, backward, optimizer" in stderr
    rows = RowReader(run / "steps", 0).take()
    assert list(rows["step"]) == list(range(len(rows)))
    assert 285 <= len(rows) < 300
    assert np.count_nonzero(rows["flags"] == REGULAR) >= len(rows) - 2
    assert (rows["forward"] >= 0.003).all()
    assert (rows["wall"] >= rows["forward"] + rows["backward"] + rows["loader"]).all()
    assert np.nanmin(rows["memory"]) > 1 << 20
    (rank,) = read_status(run).ranks
    assert rank.step == rows["step"][-1]
    (shown,) = json.loads(traceq("watch", "--status", str(run), "--json"))["ranks"]
    assert shown["step"] == rank.step
    assert "rank" in traceq("watch", "--status", str(run))


@pytest.mark.slow
def test_ranks_trace_the_same_steps_when_asked_and_sigkill_tears_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(run, *torchrun(2), str(JOB), "100000")
    try:
        wait_until(process, run / HEALTHY / "run.json")
        folder = WatchFolder(run)
        deadline = time.monotonic() + patient(60)
        while not folder.has_captured(HEALTHY):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        path = capture_now(run, 2, patient(60))
        assert path.name == "capture-1"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    ranks = [RowReader(run / "steps", rank).take() for rank in range(2)]
    traced = [rows["step"][rows["flags"] == CAPTURED] for rows in ranks]
    num = min(map(len, traced))
    assert num > 10
    assert (traced[0][:num] == traced[1][:num]).all()
    for rows in ranks:
        assert list(rows["step"]) == list(range(len(rows)))
    assert "watched_job.py" in traceq("show", str(path))
    assert "Syncs and collectives per step: the same" in traceq("diff", str(run / HEALTHY), str(path))


@pytest.mark.slow
def test_an_onset_is_said_with_its_rank_and_kind_and_traced(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(run, *torchrun(2), str(JOB), "3000", "1500", "leak")
    _, stderr = process.communicate(timeout=patient(300))
    assert process.returncode == 0, stderr
    onset = next(each for each in WatchFolder(run).read_onsets() if each.kind == "growing memory")
    assert onset.ranks == (0, 1)
    assert 1450 < onset.step < onset.seen_at < 1900
    if onset.capture:
        assert "watched_job.py:" in traceq("diff", str(run / HEALTHY), str(run / onset.capture))


@pytest.mark.slow
def test_launchers_of_two_nodes_join_their_steps_through_the_store_of_the_job(tmp_path: Path) -> None:
    port = free_port()
    processes = []
    for node in (0, 1):
        words = torchrun(1, str(JOB), "2000", "1000", "rank", node=node, num_nodes=2, port=port)
        variables = {"TRACEQ_TEST_HOST": f"n{node}", "OMP_NUM_THREADS": "1", "SLEEPS": "1", "MORE_S": "0.02"}
        processes.append(start_process([*TRACEQ, "watch", "--out", "run", "--", *words], tmp_path, variables))
    done = wait_for_all(processes)
    assert [code for code, _, _ in done] == [0, 0], done
    assert not any("no steps of" in stderr or "no more onsets" in stderr for _, _, stderr in done), done
    (run,) = (path for path in tmp_path.iterdir() if WatchFolder(path).is_watched)
    hosts = WatchFolder(run).read_job().hosts
    onset = next(each for each in WatchFolder(run).read_onsets() if each.kind == SLOW_RANK)
    assert onset.ranks == (1,), hosts
    assert 950 < onset.step < onset.seen_at < 1500
    assert sum("slow rank" in stderr for _, _, stderr in done) == 1
    assert [rank.host for rank in read_status(run).ranks] == list(hosts)
