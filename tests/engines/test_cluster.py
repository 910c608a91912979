"""Ranks that dask workers read: the same sheet, whoever of them dies, and only by workers with this traceq."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import MS, Fleet, play

from traceq.analysis.registry import sheet
from traceq.engines.analyze_path import sheet_of
from traceq.engines.rank_reader import Lost
from traceq.engines.workers import Cluster
from traceq.errors import TraceqError
from traceq.renderers.json import json_pieces
from traceq.runs.read import read

distributed = pytest.importorskip("distributed")

FLEET = Fleet(num_ranks=12, ranks_per_host=4, layers=1, steps=3, late_ranks=(4, 5, 6, 7), late_ns=6 * MS, desync_rank=9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(FLEET).write(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    """Two processes of one thread, which are replaced when they die."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as local:
        yield local


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEQ_CACHE", "0")


@pytest.mark.slow
def test_workers_say_to_the_byte_what_one_process_says(folder: Path, workers: Any) -> None:
    result, run = sheet_of(folder, start=lambda: Cluster(workers.scheduler_address), small=-1)
    assert run.traces == ()
    assert "".join(json_pieces(result)) == "".join(json_pieces(sheet(read(folder))))


@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle_changes_nothing(folder: Path, workers: Any) -> None:
    killed: list[int] = []

    def kill_one(ended: int, planned: int) -> None:
        if ended == 4 and not killed:
            killed.append(workers.workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    result, _ = sheet_of(folder, start=lambda: Cluster(workers.scheduler_address), small=-1, on_progress=kill_one)
    assert "".join(json_pieces(result)) == "".join(json_pieces(sheet(read(folder))))
    assert len(killed) == 1


@pytest.mark.slow
def test_a_rank_that_kills_worker_after_worker_is_lost_alone(workers: Any) -> None:
    def dies_of_three(number: int) -> int:  # nested: it is sent by value, as workers cannot import this module
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return 10 * number

    with distributed.Client(workers.scheduler_address, set_as_default=False) as client:
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 1))
    with Cluster(workers.scheduler_address) as engine:
        result = dict(engine.map(dies_of_three, [(number,) for number in range(6)], [1] * 6))
    assert result == {number: Lost() if number == 3 else 10 * number for number in range(6)}


@pytest.mark.slow
def test_workers_of_another_traceq_are_refused(workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceq.engines.workers.sources", lambda: "9.9.9 (0123456789ab)")
    with pytest.raises(TraceqError, match=r"worker tcp://.* traceq \d+\..*; expected 9\.9\.9 "):
        Cluster(workers.scheduler_address)


@pytest.mark.slow
def test_workers_without_traceq_are_refused() -> None:
    without = ["import sys; sys.modules['traceq'] = None"]
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50, "preload": without}
    with (
        distributed.LocalCluster(n_workers=1, **options) as local,
        pytest.raises(TraceqError, match=r"tcp://\S+ has no traceq .*; expected \d"),
    ):
        Cluster(local.scheduler_address)


def test_where_no_scheduler_answers_that_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceq.engines.workers._PATIENCE_S", 1)
    with pytest.raises(TraceqError, match=r"^--cluster tcp://127\.0\.0\.1:9: no dask scheduler [^\n]+$"):
        Cluster("tcp://127.0.0.1:9")


@pytest.mark.slow
def test_a_scheduler_without_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceq.engines.workers._PATIENCE_S", 2)
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0", silence_logs=50) as local,
        pytest.raises(TraceqError, match="the scheduler has no workers"),
    ):
        Cluster(local.scheduler_address)
