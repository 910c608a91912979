"""A job ends as it would end without a recording: by itself, or, once that is complete, as by Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from launching import torchrun
from paths import ROOT
from patience import patient
from recording import MAIN

pytest.importorskip("torch", reason="recording needs torch")

from traceq.runs.run_folder import RunFolder

pytestmark = [pytest.mark.torch, pytest.mark.slow]

LOOP = """
import multiprocessing, signal, subprocess, sys, tempfile, threading, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())

def train(num_steps=1_000_000):
    for step in range(num_steps):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield step
"""
SIMULATOR = """
simulator = subprocess.Popen(["sleep", "600"])
scratch = tempfile.TemporaryDirectory(prefix="scratch-", dir=".")
log = open("log", "w")  # nobody closes it
try:
    for step in train():
        log.write(f"{step}\\n")
finally:
    simulator.terminate()
    simulator.wait()
    log.write("closed\\n")
"""
LEFT = """
subprocess.Popen(["sleep", "600"])
list(train())
"""
CAUGHT = """
try:
    list(train())
except KeyboardInterrupt:
    print("saved")
    sys.exit(1)
"""
SWALLOWED = """
def step():
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()

while True:
    try:
        step()
    except BaseException:
        print("caught", flush=True)
"""
HANDLED = """
is_over = threading.Event()
signal.signal(signal.SIGINT, lambda *_: is_over.set())
for step in train():
    if is_over.is_set():
        break
print("left the loop")
"""
THREAD = """
def run():
    try:
        list(train())
    finally:
        print("end of the thread\\n", end="", flush=True)  # in one write, as threads share it

thread = threading.Thread(target=run)
thread.start()
try:
    thread.join()
finally:
    print("end of the main thread\\n", end="")
"""
CHILD = """
process = multiprocessing.get_context("fork").Process(target=lambda: list(train()))
process.start()
process.join()
print(process.exitcode)
"""
HANGS = """
try:
    list(train())
finally:
    time.sleep(600)
"""
FAILS = """
try:
    list(train())
finally:
    raise ValueError("a full disk")
"""
EXITS = """
list(train(40))
sys.exit(7)
"""
RANKS = """
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters())
steps = torch.zeros(2)
try:
    for step in train():
        steps[dist.get_rank()] = step
finally:
    if {meets}:
        dist.all_reduce(steps)
        print(f"{{steps.tolist()}}\\n", end="", flush=True)
"""


def start(folder: Path, program: str, *words: str, ranks: int = 1, job: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Record a job of 62 steps that ends with its recording unless it does before."""
    (folder / "job.py").write_text(LOOP + program)
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program_words = [sys.executable, "job.py"] if ranks == 1 else torchrun(ranks, "job.py")
    command = [*MAIN[:-2], "--out", "run", "--steps", "32", "--trace-steps", "1", *words, "--", *program_words, *job]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr; no process of the job runs any more."""
    stdout, stderr = process.communicate(timeout=patient(90))
    assert of_session(process.pid) == []
    return process.returncode, stdout, stderr


def of_session(session: int) -> list[str]:
    """Return the commands of the session's processes that run."""
    stats = {path: path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")}
    running = [path for path, fields in stats.items() if int(fields[3]) == session and fields[0] != "Z"]
    return [path.with_name("cmdline").read_text().replace("\0", " ") for path in running]


def test_what_a_job_closes_in_finally_is_closed_and_its_log_is_whole(tmp_path: Path) -> None:
    code, _, stderr = finish(start(tmp_path, SIMULATOR))
    assert code == 0, stderr
    *steps, last = (tmp_path / "log").read_text().splitlines()
    assert (len(steps), last) == (int(steps[-1]) + 1, "closed")
    assert list(tmp_path.glob("scratch-*")) == []
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (LEFT, ""),
        (CAUGHT, "saved\n"),
        (HANDLED, "left the loop\n"),
        (THREAD, "end of the thread\nend of the main thread\n"),
        (CHILD, "0\n"),
        (SWALLOWED, "caught\n" * 5),
    ],
    ids=["left", "caught", "handled", "thread", "child", "swallowed"],
)
def test_a_complete_recording_ends_its_job_as_ctrl_c_does(program: str, printed: str, tmp_path: Path) -> None:
    code, stdout, stderr = finish(start(tmp_path, program))
    assert (code, sorted(stdout.splitlines())) == (0, sorted(printed.splitlines())), stderr
    assert RunFolder(tmp_path / "run").read_manifest().status == "complete"
    assert "Traceback" not in stderr
    assert "--grace" not in stderr


def test_a_job_that_does_not_end_within_its_grace_is_ended(tmp_path: Path) -> None:
    code, _, stderr = finish(start(tmp_path, HANGS, "--grace", "1"))
    assert code == 0
    assert "has not ended within 1 s (--grace)" in stderr


def test_what_a_job_raises_when_it_is_ended_is_shown(tmp_path: Path) -> None:
    code, _, stderr = finish(start(tmp_path, FAILS))
    assert code == 0
    assert "ValueError: a full disk" in stderr
    assert RunFolder(tmp_path / "run").read_manifest().status == "complete"


def test_the_exit_code_of_a_job_that_failed_is_named(tmp_path: Path) -> None:
    code, _, stderr = finish(start(tmp_path, EXITS))
    assert code == 7
    last = stderr.splitlines()[-1]
    assert last.startswith(f"traceq: {tmp_path}/run: ")
    assert "the job exited with 7 after " in last
    assert "run longer" not in stderr


def test_ctrl_c_has_its_own_exit_code(tmp_path: Path) -> None:
    process = start(tmp_path, "list(train())", "--steps", "100000")
    deadline = time.monotonic() + patient(60)
    while not RunFolder(tmp_path / "run").manifest_path.is_file():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    code, _, stderr = finish(process)
    assert code == 130
    assert stderr.splitlines()[-1].endswith("the recording was interrupted: KeyboardInterrupt")


@pytest.mark.parametrize("meets", [True, False])
def test_ranks_end_at_the_same_step_and_torchrun_sees_no_failure(meets: bool, tmp_path: Path) -> None:
    code, stdout, stderr = finish(start(tmp_path, RANKS.format(meets=meets), ranks=2))
    assert code == 0, stderr
    if meets:
        last, again = stdout.splitlines()
        assert last == again
        first, second = map(float, last.strip("[]").split(","))
        assert first == second
    assert "ChildFailedError" not in stderr
    assert "terminate called" not in stderr


ARMS = ("--arm", "a=1", "--arm", "b=2", "--replicates", "1", "--steps", "2000", "--trace-steps", "0")


def test_arms_whose_run_folder_is_removed_end_with_the_first_process(tmp_path: Path) -> None:
    program = """
import shutil
for step in train():
    if step == 40:
        shutil.rmtree("run")
"""
    code, _, stderr = finish(start(tmp_path, program, *ARMS, job=("{arm}",)))
    assert code == 1
    assert "folder was removed" in stderr.splitlines()[-1]
    assert "process 2 of" not in stderr
    assert not (tmp_path / "run").exists()


def test_arms_on_a_full_disk_end_with_the_first_process_that_met_it(full_disk: Path, tmp_path: Path) -> None:
    code, _, stderr = finish(start(tmp_path, "list(train())", *ARMS, job=("{arm}",)))
    assert code == 1
    assert "No space left on device" in stderr.splitlines()[-1]
    assert "process 2 of" not in stderr
    assert "No space left on device" in RunFolder(full_disk).read_manifest().fault


def test_a_job_whose_run_folder_is_removed_ends_as_it_would(tmp_path: Path) -> None:
    program = """
import shutil
for step in train(30):
    if step == 20:
        shutil.rmtree("run")
print("trained")
"""
    code, stdout, stderr = finish(start(tmp_path, program, "--then", "continue"))
    assert (code, stdout) == (1, "trained\n")
    last = stderr.splitlines()[-1]
    assert last.startswith(f"traceq: {tmp_path}/run: ")
    assert "folder was removed" in last
    assert "Traceback" not in stderr
