"""Ranks that traceq did not start, and that hang: each is named with its stack within the bound, and none is ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from launching import accelerate, torchrun
from paths import ROOT
from patience import patient
from recording import MAIN

pytest.importorskip("torch", reason="recording needs torch")
pytest.importorskip("nvtx", reason="phases are nvtx ranges")

from traceq.recorder.failures.hang_watch import HangWatch, describe_stands, rank_stand
from traceq.recorder.process.progress_counters import SeenRank, WatchedRank, read_stacks, seen_ranks
from traceq.runs.run_folder import RunFolder

pytestmark = pytest.mark.torch
JOB = Path(__file__).parents[2] / "support" / "hanging_job.py"
LINES = JOB.read_text().splitlines()
SLEEP = f"hanging_job.py:{LINES.index('    time.sleep(1e6)') + 1} hang"
MEET = f"hanging_job.py:{LINES.index('        dist.all_reduce(torch.ones(1))') + 1} meet"
HANG_S = 3
UNEDITED, LOOP = "unedited", "traceq.record"


class Job:
    """A job in a session of its own, of which stderr is read while it runs."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        outer = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        environment = {key: value for key, value in os.environ.items() if key not in outer}
        environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "scratch")}
        (folder / "scratch").mkdir()
        self.out, self.scratch, self._stderr = folder / "run", folder / "scratch", folder / "stderr"
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
            )

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """Return stderr once it has a text."""
        deadline = time.monotonic() + patient(seconds)
        while text not in self.stderr:
            assert time.monotonic() < deadline, self.stderr
            time.sleep(0.05)
        return self.stderr

    def left_running(self) -> list[str]:
        """Return the command lines of processes whose environment names this job's scratch folder, after 15 s."""
        deadline = time.monotonic() + patient(15)
        while (left := self.running()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def running(self) -> list[str]:
        command_lines = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"TMPDIR={self.scratch}\0".encode() in environ.read_bytes():
                    command_lines.append(environ.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return command_lines

    def pids(self) -> list[int]:
        """Return the processes of the job; one that was stopped has to be killed."""
        marker, pids = f"TMPDIR={self.scratch}\0".encode(), []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if marker in environ.read_bytes():
                    pids.append(int(environ.parent.name))
            except OSError:
                continue
        return pids


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        for pid in job.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        job.process.wait()


def start(jobs: list[Job], folder: Path, what: str, how: str, launcher: str, seconds: float = 0) -> Job:
    words = [str(JOB), how, "run" if what == LOOP else "", str(seconds)]
    command = {
        "alone": [sys.executable, *words],
        "torchrun": torchrun(2, *words),
        "accelerate": accelerate("ddp", *words),
    }[launcher]
    if what == UNEDITED:
        command = [*MAIN[:-2], "--out", "run", "--hang-after", str(HANG_S), "--steps", "64", "--", *command]
    jobs.append(Job(folder, command))
    return jobs[-1]


PLACES = {
    "sleep": f"rank 0 waits for the others at {MEET}, rank 1 is at {SLEEP}; the others wait for rank 1",
    "stop": f"rank 0 waits for the others at {MEET}, rank 1 was stopped; the others wait for rank 1",
    "all": f"ranks 0-1 are at {SLEEP}",
}


@pytest.mark.faults
@pytest.mark.parametrize("what", [UNEDITED, LOOP])
@pytest.mark.parametrize("how", PLACES)
def test_a_rank_of_torchrun_that_hangs_is_named_with_the_stacks(
    how: str, what: str, jobs: list[Job], tmp_path: Path
) -> None:
    job = start(jobs, tmp_path, what, how, "torchrun")
    stderr = job.wait_for("the job may be slow")
    assert f"traceq: no step for {HANG_S} s: {PLACES[how]}\n" in stderr
    assert stderr.count('hanging_job.py", line') >= (1 if how == "stop" else 2)
    assert job.process.poll() is None
    samples = job.out / "steps" / "rank0.jsonl"
    assert not samples.exists() or time.time() - samples.stat().st_mtime < patient(HANG_S + 10)


@pytest.mark.faults
def test_a_rank_of_accelerate_that_hangs_is_named(jobs: list[Job], tmp_path: Path) -> None:
    job = start(jobs, tmp_path, UNEDITED, "sleep", "accelerate")
    assert PLACES["sleep"] in job.wait_for("the job may be slow")


@pytest.mark.faults
@pytest.mark.parametrize("what", [UNEDITED, LOOP])
def test_a_job_of_one_process_that_hangs_says_where(what: str, jobs: list[Job], tmp_path: Path) -> None:
    job = start(jobs, tmp_path, what, "sleep", "alone")
    assert f" for {HANG_S} s: rank 0 is at {SLEEP}\n" in job.wait_for("the job may be slow")
    os.killpg(job.process.pid, signal.SIGINT)
    job.process.wait(patient(30))
    fault = RunFolder(job.out).read_manifest().fault
    assert fault.startswith("KeyboardInterrupt; no step for ")
    assert SLEEP in fault
    assert job.left_running() == []
    assert list(job.scratch.glob("traceq-*")) == []


@pytest.mark.faults
def test_a_process_that_was_stopped_is_named_by_the_launcher(jobs: list[Job], tmp_path: Path) -> None:
    job = start(jobs, tmp_path, UNEDITED, "stop", "alone")
    job.wait_for(f" for {HANG_S} s: rank 0 was stopped\n")


@pytest.mark.faults
@pytest.mark.parametrize("what", [UNEDITED, LOOP])
def test_a_job_that_is_only_slow_goes_on_and_its_recording_is_complete(
    what: str, jobs: list[Job], tmp_path: Path
) -> None:
    job = start(jobs, tmp_path, what, "slow", "torchrun", seconds=HANG_S + 3)
    assert job.process.wait(patient(120)) == 0, job.stderr
    assert f"traceq: no step for {HANG_S} s: ranks 0-1 " in job.stderr
    assert RunFolder(job.out).is_complete
    assert not RunFolder(job.out).hang.exists()
    assert list(job.scratch.glob("traceq-*")) == []


@pytest.mark.faults
@pytest.mark.parametrize("launcher", ["alone", "torchrun"])
def test_a_launcher_that_is_killed_ends_the_job_and_all_that_it_started(
    launcher: str, jobs: list[Job], tmp_path: Path
) -> None:
    job = start(jobs, tmp_path, UNEDITED, "sleep", launcher)
    job.wait_for("traceq: no step for ")
    assert len(job.running()) >= {"alone": 3, "torchrun": 5}[launcher]  # the launcher and its guard are of them
    job.process.kill()
    assert job.left_running() == []
    assert not (job.out / ".inject").exists()
    assert list(job.scratch.glob("traceq-*")) == []


STACK = """\
  File "/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/job/train.py", line 15 in mean
  File "/job/train.py", line 40 in <module>
"""
BACKWARD = """\
  File "/site-packages/torch/autograd/graph.py", line 900 in _engine_run_backward
  File "/site-packages/torch/_tensor.py", line 600 in backward
  File "/job/train.py", line 30 in <module>
"""
EVALUATES = """\
  File "/job/train.py", line 71 in evaluate
"""


def seen(rank: int, num_events: int = 7) -> SeenRank:
    return SeenRank(Path(f"{rank}.1"), rank, 1, num_events)


def test_ranks_in_collectives_and_in_backward_wait_for_those_that_are_not() -> None:
    stands = [
        rank_stand(seen(0), STACK),
        rank_stand(seen(1), BACKWARD),
        rank_stand(seen(2), STACK),
        rank_stand(seen(3), EVALUATES, is_busy=True),
    ]
    assert [each.text.rpartition(" at ")[::2] for each in stands] == [
        ("waits for the others", "train.py:15 mean"),
        ("is in backward", "train.py:30"),
        ("waits for the others", "train.py:15 mean"),
        ("computes", "train.py:71 evaluate"),
    ]
    line, *stacks = describe_stands(stands)
    assert re.findall(r"ranks? [\d, ]*\d \w+", line) == ["ranks 0, 2 wait", "rank 1 is", "rank 3 computes"]
    assert line.endswith("; the others wait for rank 3")
    assert [text for text in stacks if not text.startswith(" ")] == [
        "ranks 0, 2, most recent call first:",
        "rank 1, most recent call first:",
        "rank 3, most recent call first:",
    ]


def test_of_ranks_that_stand_alike_the_one_behind_is_late_and_none_if_all_are_equal() -> None:
    (line, *_) = describe_stands([rank_stand(seen(0), STACK), rank_stand(seen(1, num_events=6), STACK)])
    assert line.endswith("; the others wait for rank 1")
    (line, *_) = describe_stands([rank_stand(seen(0), EVALUATES), rank_stand(seen(1), EVALUATES)])
    assert line.startswith("ranks 0-1 are at train.py:71")
    assert ";" not in line


def test_a_rank_without_a_stack_does_not_answer() -> None:
    assert rank_stand(seen(0), "").text == "does not answer"


def test_a_watched_rank_counts_prints_its_stack_and_leaves_nothing(tmp_path: Path) -> None:
    rank = WatchedRank(str(tmp_path), 3)
    rank.counters.count_step()
    rank.counters.count_phase()
    (watched,) = seen_ranks(tmp_path)
    assert (watched.rank, watched.pid, watched.num_events) == (3, os.getpid(), 2)
    (stack,) = read_stacks([watched])
    assert "in test_a_watched_rank_counts_prints_its_stack_and_leaves_nothing" in stack
    rank.close()
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGURG) == signal.SIG_DFL


def test_a_handler_of_the_job_is_left_alone(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGURG, lambda *_: None)
    try:
        rank = WatchedRank(str(tmp_path), 0)
        assert read_stacks(seen_ranks(tmp_path)) == [""]
        rank.close()
    finally:
        signal.signal(signal.SIGURG, before)


def test_ranks_of_another_host_are_not_watched(tmp_path: Path) -> None:
    rank = WatchedRank(str(tmp_path / "elsewhere"), 0)
    rank.counters.count_step()
    rank.close()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_it_is_said_once_until_the_time_has_doubled_and_taken_back_when_steps_go_on(tmp_path: Path) -> None:
    ranks, folder = tmp_path / "ranks", RunFolder(tmp_path)
    ranks.mkdir()
    rank = WatchedRank(str(ranks), 0)
    watch = HangWatch(ranks, folder, 0.4)

    def said_within(seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        lines: list[str] = []
        while not lines and time.monotonic() < deadline:
            lines = watch.look()
            time.sleep(0.02)
        return lines

    rank.counters.count_step()
    first, *rest = said_within(patient(5))
    assert first.startswith("traceq: no step for 0 s: rank 0 ")
    assert rest[-1].endswith("Ctrl-C ends it")
    assert folder.hang.read_text().startswith(first.removeprefix("traceq: "))
    rank.counters.count_step()
    assert said_within(patient(5)) == ["traceq: steps go on after 1 s"]
    assert not folder.faults.exists()
    rank.close()
    assert said_within(1.5) == []
    assert HangWatch(ranks, folder, 0).look() == []
