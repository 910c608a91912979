"""A thousand ranks: `diff` and `check` say the same on one core, on two, and with a worker that dies in the middle."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import MS, Fleet, play
from terminal import PROGRAM

pytestmark = [
    pytest.mark.many,
    pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a process on one core"),
]
distributed = pytest.importorskip("distributed")

RANKS = 1024
BEFORE = Fleet(RANKS, layers=1, steps=2)
AFTER = Fleet(
    RANKS, layers=1, steps=2, seed=1, late_ranks=Fleet(RANKS).on_host(3), late_ns=6 * MS, desync_rank=RANKS // 2
)
COMMANDS = {
    "diff": "diff {a} {b} --json",
    "check": "check {b} --rule 'dtoh == 0' --rule 'step < 1 ms' --rule 'collectives identical across ranks'",
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: play(job).write(tmp_path_factory.mktemp(name)) for name, job in (("a", BEFORE), ("b", AFTER))}


@pytest.fixture
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as local:
        yield local


def outcome_of(line: str, jobs: dict[str, Path], cores: int = 2) -> tuple[int, bytes]:
    """Exit code and stdout of a command without a cache, on as many cores."""
    some = sorted(os.sched_getaffinity(0))[:cores]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *shlex.split(line.format(**jobs))],
        capture_output=True,
        check=False,
        env=os.environ | {"TRACEQ_CACHE": "0"},
        preexec_fn=lambda: os.sched_setaffinity(0, some),
    )
    return done.returncode, done.stdout


def kill_a_worker(cluster: Any, killed: list[int]) -> None:
    """Kill a worker once it has read some ranks."""
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        worker = cluster.workers[0]
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if client.run(lambda dask_worker: dask_worker.state.executed_count)[worker.worker_address] > 5:
                os.kill(worker.pid, signal.SIGKILL)
                killed.append(worker.pid)
                return
            time.sleep(0.05)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_thousand_ranks_are_the_same_on_any_cores_and_workers(
    command: str, jobs: dict[str, Path], cluster: Any
) -> None:
    line = COMMANDS[command]
    expected = outcome_of(line, jobs, cores=1)
    assert expected[0] in (0, 3)
    assert expected[1]
    assert outcome_of(line, jobs) == expected
    killed: list[int] = []
    killer = threading.Thread(target=kill_a_worker, args=(cluster, killed))
    killer.start()
    outcome = outcome_of(f"{line} --cluster {cluster.scheduler_address}", jobs)
    assert killed, "it ended too early"
    killer.join()
    assert outcome == expected
