"""`dyno gputrace` traces a job under `traceq watch` as it does one without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dynolog_daemon import dynolog_daemon, gputrace_config
from paths import ROOT, TESTS
from patience import patient

pytest.importorskip("torch", reason="recording needs torch")

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="dynolog runs on Linux alone")]
TRACEQ = [sys.executable, "-c", "from traceq.cli import main; main()"]
JOB = [sys.executable, str(TESTS / "support" / "watched_job.py"), "100000"]


@pytest.mark.slow
@pytest.mark.parametrize("is_watched", [False, True], ids=["Kineto", "traceq watch"])
def test_an_operator_gets_a_trace_by_the_name_of_the_process(tmp_path: Path, is_watched: bool) -> None:
    with dynolog_daemon() as daemon:
        daemon.config = gputrace_config(
            tmp_path / "t.json", "PROFILE_START_ITERATION_ROUNDUP=1\nACTIVITIES_ITERATIONS=3"
        )
        command = [*TRACEQ, "watch", "--out", str(tmp_path / "run"), "--", *JOB] if is_watched else JOB
        variables = {"PYTHONPATH": str(ROOT), "KINETO_ONDEMAND_TRACE_DIR": str(tmp_path), **daemon.variables}
        process = subprocess.Popen(command, env={**os.environ, **variables}, text=True, stderr=subprocess.PIPE)
        deadline = time.monotonic() + patient(60)
        while not (traces := list(tmp_path.glob("t_*.json"))):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        process.terminate()
        _, stderr = process.communicate(timeout=patient(30))
    (asker,) = {pids[0] for _, pids in daemon.requests}
    assert traces == [tmp_path / f"t_{asker}.json"]
    assert (asker == process.pid) != is_watched, stderr
    assert "aten::addmm" in {event["name"] for event in json.loads(traces[0].read_bytes())["traceEvents"]}
