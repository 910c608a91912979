"""What the launcher of a watched run makes of requests of the daemon."""

from __future__ import annotations

import gzip
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from dynolog_daemon import DynologDaemon, dynolog_daemon, gputrace_config
from made_steps import complete, made_ranks, watched_run

from traceq.long_runs import dynolog
from traceq.long_runs.dynolog import DynologRequest, DynologWatch
from traceq.long_runs.run_watch import on_demand_name, request_capture
from traceq.long_runs.watch_folder import WatchFolder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="dynolog runs on Linux alone")
THREE_STEPS = "PROFILE_START_ITERATION=0\nPROFILE_START_ITERATION_ROUNDUP=1\nACTIVITIES_ITERATIONS=3"


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DynologDaemon]:
    with dynolog_daemon() as daemon:
        for name, value in {**daemon.variables, "KINETO_ONDEMAND_TRACE_DIR": str(tmp_path / "traces")}.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "traces").mkdir()
        monkeypatch.setattr(dynolog, "EVERY_S", 0.0)
        monkeypatch.setattr(dynolog, "DYNOLOG_EVERY_S", 0.0)
        yield daemon


@pytest.fixture
def folder(tmp_path: Path) -> WatchFolder:
    """A run of two ranks, of which the second is on another host."""
    folder = watched_run(tmp_path / "run", made_ranks({}, {}))
    job = folder.read_job()
    folder.write_job(msgspec.structs.replace(job, hosts=(socket.gethostname(), "other"), pids=(os.getpid(), 1)))
    return folder


def look(watch: DynologWatch, num: int = 3) -> list[str]:
    """Lines of some looks; the daemon answers in between."""
    lines = []
    for _ in range(num):
        lines += watch.look()
        time.sleep(0.05)
    return lines


def write_traces(folder: WatchFolder, name: str) -> None:
    complete(folder, name)
    trace = folder.captured(name).trace("run", 0)
    trace.parent.mkdir()
    trace.write_bytes(gzip.compress(b'{"traceEvents": []}'))


def test_steps_are_traced_and_written_where_the_operator_looks(
    daemon: DynologDaemon, folder: WatchFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    watch = DynologWatch(lambda: folder)
    assert look(watch) == []
    assert not folder.capture_path.exists()
    assert set(daemon.requests) == {(77, daemon.requests[0][1])}
    assert daemon.requests[0][1][:2] == (os.getpid(), os.getppid())
    daemon.config = gputrace_config(tmp_path / "traces" / "t.json", THREE_STEPS)
    assert look(watch) == []
    assert (folder.read_capture().name, folder.read_capture().num_steps) == ("capture-1", 3)
    write_traces(folder, "capture-1")
    path = tmp_path / "traces" / f"t_{os.getpid()}.json"
    assert look(watch) == [f"traceq: dynolog: {path}, of {folder.path / 'capture-1'}"]
    assert path.read_text() == '{"traceEvents": []}'
    watch.close()
    assert os.listdir(daemon.folder) == ["dynolog"]


@pytest.mark.parametrize("place", ["outside", "traces/../outside", "traces/link"])
def test_nothing_is_written_outside_the_folder_for_traces(
    daemon: DynologDaemon, folder: WatchFolder, tmp_path: Path, place: str
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "traces" / "link").symlink_to(tmp_path / "outside")
    daemon.config = gputrace_config(tmp_path / place / "t.json", THREE_STEPS)
    watch = DynologWatch(lambda: folder)
    look(watch)
    write_traces(folder, "capture-1")
    (line,) = look(watch)
    assert "not copied" in line
    assert os.listdir(tmp_path / "outside") == []
    watch.close()


def test_a_launcher_joins_the_request_of_another_one(folder: WatchFolder) -> None:
    request_capture(folder, on_demand_name(folder), last_step=100, step_s=1.0)
    assert on_demand_name(folder) == "capture-1"
    complete(folder, "capture-1", "recording")
    assert on_demand_name(folder) == "capture-1"
    complete(folder, "capture-1")
    assert on_demand_name(folder) == "capture-2"


def test_a_job_that_is_started_again_has_other_processes(daemon: DynologDaemon, folder: WatchFolder) -> None:
    watch = DynologWatch(lambda: folder)
    look(watch)
    folder.write_job(msgspec.structs.replace(folder.read_job(), pids=(os.getppid(), 1)))
    look(watch)
    assert list(dict.fromkeys(pids[0] for _, pids in daemon.requests)) == [os.getpid(), os.getppid()]
    assert len(os.listdir(daemon.folder)) == 2
    watch.close()


def test_without_a_daemon_nothing_happens(
    daemon: DynologDaemon, folder: WatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETO_IPC_SOCKET_DIR", f"{daemon.folder}/none")
    os.mkdir(f"{daemon.folder}/none")
    watch = DynologWatch(lambda: folder)
    assert look(watch) == []
    watch.close()


def test_a_request_says_how_much_is_to_be_traced() -> None:
    request = DynologRequest.parse("ACTIVITIES_X=\nPROFILE_START_TIME=1500\n ACTIVITIES_DURATION_MSECS = 500 # ms\n")
    assert request == DynologRequest("/tmp/libkineto_activities.json", 0, 0.5, 1.5)
    assert [request.num_steps(step_s) for step_s in (0.1, 10.0, 1e-5)] == [5, 1, 100]
    assert DynologRequest.parse(gputrace_config("t", THREE_STEPS)) == DynologRequest("t", 3, 0.5, 0.0)
