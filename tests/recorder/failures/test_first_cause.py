"""What ends a recording is told, and not what follows from it; ranks that all hang are named, with their stacks."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from patience import patient
from recording import INJECTED, start

from traceq.runs.run_folder import RunFolder

pytest.importorskip("torch", reason="recording needs torch")

import torch

from traceq.recorder import launch
from traceq.recorder.failures import hang_watch
from traceq.recorder.failures.external_launcher import note_abort
from traceq.recorder.failures.rank_errors import (
    ABORTED,
    error_text,
    is_peer_error,
    read_error,
    reserve_descriptors,
    write_error,
)
from traceq.recorder.launch import StallWatch
from traceq.recorder.process.child_processes import kill_group, state
from traceq.recorder.process.progress_counters import ProgressCounters, create_counters
from traceq.recorder.process.world import World
from traceq.recorder.spec.plan import Plan

pytestmark = pytest.mark.torch
LONG = ("--steps", "10000", "--trace-steps", "0", "--set", "end_at=30")
SCREEN = 8_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "fault"),
    [
        ("files", "rank 1: OSError: [Errno 24] Too many open files: "),
        ("mismatch", "rank 0: all_reduce float32 x 4; rank 1: all_reduce float32 x 1,000"),
        ("long", "rank 1: ValueError: zzzzz"),
    ],
)
def test_the_first_cause_is_told(end: str, fault: str, tmp_path: Path) -> None:
    started = start(tmp_path, *LONG, "--set", f"end={end}")
    done = started.finish()
    assert done.code == 1
    assert len(done.stderr) < SCREEN
    assert fault in next(line for line in done.stderr.splitlines() if line.startswith("traceq:"))
    manifest = RunFolder(done.out).read_manifest()
    assert manifest.status == "failed"
    assert fault in manifest.fault
    assert len(manifest.fault) < SCREEN
    if end == "long":
        assert "z" * 5_000_000 in (done.out / "logs/rank1.log").read_text()
    assert started.left_running() == []
    assert list(started.scratch.glob("traceq-*")) == []


@pytest.mark.slow
def test_ranks_that_wait_in_two_collectives_are_given_the_time_to_say_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(INJECTED), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("TRACEQ_TEST_PATIENCE", str(patient(15)))
    done = start(tmp_path, *LONG, "--hang-after", "3", "--set", "end=desync").finish()
    assert done.code == 1
    (fault,) = (line for line in done.stderr.splitlines() if re.search(r"stalled: desync at collective \d+: ", line))
    for collective in (r"rank 0: all_reduce float32 x \d+; ", "rank 1: all_gather float32 x 16; "):
        assert re.search(collective, fault)
    for rank in (0, 1):
        assert re.search(rf"rank {rank} waits at linear\.py:\d+", fault)


@pytest.mark.slow
def test_a_run_folder_that_is_deleted_is_the_cause(tmp_path: Path) -> None:
    started = start(tmp_path, *LONG)
    started.signal_when_measuring(signal.SIGCONT)
    shutil.rmtree(started.out)
    done = started.finish(20)
    assert done.code == 1
    assert done.stderr.splitlines()[-1].startswith(f"traceq: {started.out}: was deleted ")
    assert not started.out.exists()
    assert started.left_running() == []


@pytest.mark.slow
def test_a_launcher_that_is_killed_leaves_no_grandchild_and_no_folder(tmp_path: Path) -> None:
    grandchild = tmp_path / "child"
    started = start(tmp_path, *LONG, "--set", "end=child", "--set", f"child_file={grandchild}")
    deadline = time.monotonic() + patient(60)
    while not grandchild.is_file() or not grandchild.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pid = int(grandchild.read_text())
    assert Path(f"/proc/{pid}").exists()
    started.signal_when_measuring(signal.SIGKILL)
    assert started.finish().code == -signal.SIGKILL
    deadline = time.monotonic() + patient(3)
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    assert started.left_running() == []
    assert list(started.scratch.glob("traceq-*")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "stands", "late"),
    [
        ("sleep_all", ["rank 0 is", "rank 1 is"], ""),
        ("sleep", ["rank 1 is"], "rank 1"),
        ("stop", ["rank 1 was stopped"], "rank 1"),
    ],
)
def test_ranks_that_hang_are_named_with_their_lines(end: str, stands: list[str], late: str, tmp_path: Path) -> None:
    started = start(tmp_path, *LONG, "--set", f"end={end}", "--hang-after", "4")
    done = started.finish(60)
    assert done.code == 1
    lines = (Path(__file__).parents[2] / "support/recipes/linear.py").read_text().splitlines()
    call = {"stop": "os.kill(os.getpid(), signal.SIGSTOP)"}.get(end, "time.sleep(1e6)")
    line = next(number for number, line in enumerate(lines, 1) if call in line)
    fault = RunFolder(done.out).read_manifest().fault
    assert fault.startswith("no rank made progress for 4 s: ")
    assert [text for text in stands if f"{text} at linear.py:{line} _end" not in fault] == []
    assert fault.partition("; the others wait for ")[2] == late
    stacks = done.stderr.partition(fault)[2]
    assert stacks.count("in run_rank") == 2  # the stack of each rank
    steps = done.out / "steps" / "rank0.jsonl"
    assert time.time() - steps.stat().st_mtime < patient(4 + 12)
    assert started.left_running() == []


def plan(folder: Path, hang_s: float) -> Plan:
    create_counters(folder / "progress", 2)
    fields = dict.fromkeys(("recipe", "run_id", "out", "device"), "")
    return Plan(
        **fields,
        num_ranks=2,
        steps=1,
        trace_steps=0,
        seed=0,
        parameters={},
        arms=(),
        scratch=str(folder),
        hang_s=hang_s,
    )


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    monkeypatch.setattr(launch, "_STALL_POLL_S", 0.1)
    monkeypatch.setattr(launch, "_SETTLED_S", 0.1)
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for process in running:
        kill_group(process)


def ranks(running: list[subprocess.Popen[bytes]], *words: list[str]) -> list[subprocess.Popen[bytes]]:
    running += [subprocess.Popen(each, process_group=0) for each in words]
    return running


def stalls_within(watch: StallWatch, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if watch.has_stalled():
            return True
        time.sleep(0.02)
    return False


SLEEPS, COMPUTES = ["sleep", "1000"], [sys.executable, "-c", "while True: pass"]
IN_A_CHILD = ["sh", "-c", f"{sys.executable} -c 'while True: pass'; true"]
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="a system without /proc")


@pytest.mark.slow
@needs_proc
def test_only_ranks_that_neither_count_nor_compute_stall(
    programs: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    processes = ranks(programs, SLEEPS, SLEEPS)
    assert stalls_within(StallWatch(processes, plan(tmp_path, 0.5)), patient(10))
    assert not stalls_within(StallWatch(processes, plan(tmp_path, 0)), 1)


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("other", [COMPUTES, IN_A_CHILD], ids=["itself", "a child"])
def test_a_rank_that_computes_makes_progress(
    other: list[str], programs: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    watch = StallWatch(ranks(programs, SLEEPS, other), plan(tmp_path, 1.0))
    assert not stalls_within(watch, 2.5)


@pytest.mark.slow
@needs_proc
def test_a_phase_that_begins_is_progress(programs: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    watch = StallWatch(ranks(programs, SLEEPS, SLEEPS), plan(tmp_path, 0.8))
    counters = ProgressCounters(str(tmp_path / "progress"), 1)
    for _ in range(6):
        counters.count_phase()
        assert not stalls_within(watch, 0.3)


@needs_proc
def test_a_stopped_process_is_known(programs: list[subprocess.Popen[bytes]]) -> None:
    (process,) = ranks(programs, SLEEPS)
    assert state(process.pid) != "T"
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + patient(2)
    while state(process.pid) != "T":
        assert time.monotonic() < deadline


def test_an_error_is_written_when_no_descriptor_is_left(tmp_path: Path) -> None:
    import resource

    reserve_descriptors()
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, limits[0]), limits[1]))
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        write_error(str(tmp_path), 0, error)
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    written = read_error(str(tmp_path), 0)
    assert written is not None
    assert written.text.startswith("OSError: [Errno 24] Too many open files")


def test_an_abort_after_a_report_does_not_replace_it(tmp_path: Path) -> None:
    """Nor does a SIGTERM: the stack of the loop is gone while its own exception is being reported."""
    job, world = replace(plan(tmp_path, 0), out=str(tmp_path)), World(0, 0, 2, torch.device("cpu"))
    note_abort(job, world)
    aborted = read_error(job.faults_folder, 0)
    assert aborted is not None
    assert aborted.text == f"RuntimeError: {ABORTED}"
    write_error(job.faults_folder, 0, ValueError("bad batch"))
    note_abort(job, world)
    kept = read_error(job.faults_folder, 0)
    assert kept is not None
    assert kept.text == "ValueError: bad batch"


SIGNALLED = """
import os, signal, socket, subprocess, sys
from types import SimpleNamespace
from traceq.recorder.failures.external_launcher import sigterm_noted
from traceq.recorder.process.world import Peer

def report(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    print("reported")

sys.excepthook = report
ended = subprocess.Popen(["true"])
ended.wait()
peers = [Peer(socket.gethostname(), pid) for pid in (os.getpid(), ended.pid, os.getppid())]
plan = SimpleNamespace(faults_folder="faults", folder=SimpleNamespace(stalled=str))
block = sigterm_noted(plan, SimpleNamespace(rank=0, peers=peers))
block.__enter__()
"""
SILENT = "exited without reporting an error (killed, or exited early)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code", "stdout", "noted"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "", ["ended by SIGTERM", SILENT, None]),
        (
            "1 / 0",
            1,
            "reported\n",
            [None, None, None],
        ),  # a rank whose peer failed has an exception and a SIGTERM at once
    ],
)
def test_a_sigterm_is_noted_but_for_a_process_that_reports_its_exception(
    end: str, code: int, stdout: str, noted: list[str | None], tmp_path: Path
) -> None:
    """Noted, too, is a peer that has ended without a report: what started the ranks may not say so."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED + end], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False
    )
    errors = [read_error(str(tmp_path / "faults"), rank) for rank in range(3)]
    assert (done.returncode, done.stdout, [error and error.text for error in errors]) == (code, stdout, noted)


def test_a_watcher_ends_also_if_its_rank_ended_before_it_began(tmp_path: Path) -> None:
    ended, folder = subprocess.Popen(["true"]), tmp_path / "watched"
    ended.wait()
    folder.mkdir()
    words = [str(ended.pid), str(folder), str(tmp_path / "run"), "30"]
    subprocess.run([sys.executable, "-m", hang_watch.__name__, *words], check=True, timeout=patient(30))
    assert not folder.exists()


def test_a_library_that_connects_without_descriptors_is_not_a_peer_that_left() -> None:
    assert is_peer_error("RuntimeError: Gloo connectFullMesh failed with ... connection reset")
    assert not is_peer_error("RuntimeError: Gloo connectFullMesh failed with ... Too many open files")


def test_a_long_exception_is_cut_to_a_screen_with_both_ends() -> None:
    text = error_text(ValueError("begin " + "x" * 5_000_000 + " end"))
    assert len(text) < 2_100
    assert text.startswith("ValueError: begin xxx")
    assert text.endswith("xxx end")
    assert "[... 5,000,022 characters ...]" in text
