"""A job that is recorded unedited and fails: the reason is on the terminal and in the run, and nothing is left."""

from __future__ import annotations

import os
import re
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
pytest.importorskip("nvtx", reason="phases are nvtx ranges")

from traceq.model import Manifest
from traceq.recorder.failures.rank_errors import TerminateHandler
from traceq.runs.run_folder import RunFolder

pytestmark = [pytest.mark.torch, pytest.mark.faults]
JOB = str(Path(__file__).parents[2] / "support" / "faulty_job.py")
IN_TIMED_STEPS, IN_TRACED_STEPS = 60, 160
ALONE = [sys.executable, JOB]
RANKS = torchrun(2, JOB)


def start(folder: Path, job: Sequence[str], *options: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [*MAIN[:-2], "--out", "run", *options, "--", *job]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str], folder: Path) -> tuple[int, str, Manifest]:
    """Return exit code, what traceq said last, and the manifest; no process of the job runs any more."""
    _, stderr = process.communicate(timeout=patient(90))
    last = [line for line in stderr.splitlines() if line.startswith("traceq:")][-1]
    deadline = time.monotonic() + patient(5)
    while (left := of_session(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    assert not (folder / "run" / ".inject").exists()
    return process.returncode, last, RunFolder(folder / "run").read_manifest()


def of_session(session: int) -> list[str]:
    """Return the states of the session's processes that have not ended."""
    running = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            running.append(stat.parent.name)
    return running


@pytest.mark.parametrize("step", [IN_TIMED_STEPS, IN_TRACED_STEPS])
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "ValueError: bad batch"),
        ("memory", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        ("kill", "exited without reporting an error"),
        ("hang", "stopped responding; "),
        ("exit", "the loop ended after "),
    ],
)
def test_the_rank_that_fails_is_named(how: str, reason: str, step: int, tmp_path: Path) -> None:
    code, last, manifest = finish(start(tmp_path, [*RANKS, how, str(step)]), tmp_path)
    assert code == 1
    assert manifest.status == "failed"
    assert manifest.fault.startswith(f"rank 1: {reason}")
    assert last == f"traceq: {tmp_path}/run: the recording failed: {manifest.fault}"


@pytest.mark.parametrize(
    ("how", "code", "reason"),
    [
        ("raise", 1, "ValueError: bad batch"),
        ("memory", 1, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        ("kill", 137, "the job .* exit code 137$"),
        ("exit", 1, "the loop ended after "),
    ],
)
def test_a_job_of_one_process_says_why_it_ended(how: str, code: int, reason: str, tmp_path: Path) -> None:
    ended, last, manifest = finish(start(tmp_path, [*ALONE, how, str(IN_TIMED_STEPS)]), tmp_path)
    assert ended == code
    assert re.match(reason, manifest.fault)
    assert manifest.fault in last


@pytest.mark.parametrize("job", [ALONE, RANKS], ids=["alone", "torchrun"])
def test_memory_that_runs_out_in_one_arm_names_the_arm(job: list[str], tmp_path: Path) -> None:
    process = start(tmp_path, [*job, "memory of an arm", str(IN_TIMED_STEPS)], "--toggle", "main.config.value=0,1")
    code, last, manifest = finish(process, tmp_path)
    assert code == 1
    assert manifest.fault.endswith(" 2.00 GiB. (in a step of arm value=1)")
    assert manifest.fault in last


@pytest.mark.parametrize("step", [30, 45, IN_TIMED_STEPS, IN_TRACED_STEPS])
@pytest.mark.parametrize(
    ("how", "collective", "line"),
    [
        ("other", "all_gather float32 x 6", "all_losses"),  # gloo waits until it times out
        ("skip", "all_reduce float32 x 4,160", "main"),  # gloo aborts rank 0, which receives too much
    ],
)
def test_a_desync_names_both_collectives_and_both_lines(
    how: str, collective: str, line: str, step: int, tmp_path: Path
) -> None:
    code, last, manifest = finish(start(tmp_path, [*RANKS, how, str(step)]), tmp_path)
    assert code == 1
    for text in (last, manifest.fault):
        if "has issued" in text:  # rank 1 waits at the end of a step, for the others to come there
            assert re.search(r"rank 0 has issued [\d,]+ collectives, last all_reduce; ", text)
            assert re.search(r"rank 1 has issued [\d,]+ ", text)
        else:
            assert "rank 0: all_reduce float32 x 25" in text
            assert f"rank 1: {collective}" in text
        assert "rank 0 waits at faulty_job.py:15 mean_loss" in text
        assert re.search(rf"rank 1 waits at [^;]*faulty_job.py:\d+ {line}", text)


@pytest.mark.parametrize("job", [ALONE, RANKS], ids=["alone", "torchrun"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_job_and_the_recording(number: signal.Signals, job: list[str], tmp_path: Path) -> None:
    process = start(tmp_path, [*job, "none", "-1"], "--steps", "10000")
    deadline = time.monotonic() + patient(60)
    while not RunFolder(tmp_path / "run").manifest_path.is_file():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # a terminal sends it to all
    else:
        process.send_signal(number)
    code, last, manifest = finish(process, tmp_path)
    assert code != 0
    assert manifest.status != "complete"
    assert manifest.fault in last


SPAWNED = """
import torch

def train(rank):
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(100_000):
        model(torch.randn(1, 64)).square().mean().backward()
        optimizer.step()

if __name__ == "__main__":
    torch.multiprocessing.spawn(train)
"""


def test_ctrl_c_is_no_end_of_the_loop_of_a_process_that_torch_spawned(tmp_path: Path) -> None:
    """Torch ignores KeyboardInterrupt there, so that the process ends as if its loop had."""
    (tmp_path / "spawned.py").write_text(SPAWNED)
    process = start(tmp_path, [sys.executable, "spawned.py"], "--steps", "10000")
    deadline = time.monotonic() + patient(60)
    while not RunFolder(tmp_path / "run").manifest_path.is_file():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, last, manifest = finish(process, tmp_path)
    assert (manifest.status, manifest.fault) == ("interrupted", "KeyboardInterrupt")
    assert last.endswith("the recording was interrupted: KeyboardInterrupt")


@pytest.mark.parametrize("job", [ALONE, RANKS], ids=["alone", "torchrun"])
def test_a_full_disk_ends_the_recording_and_is_named(full_disk: Path, job: list[str], tmp_path: Path) -> None:
    code, last, manifest = finish(start(tmp_path, [*job, "none", "-1"], "--steps", "10000"), tmp_path)
    assert code == 1
    assert "No space left on device" in last
    assert manifest.status == "failed"


def test_a_terminate_handler_runs_before_the_process_aborts(tmp_path: Path) -> None:
    program = (
        "import ctypes, threading\n"
        "from traceq.recorder.failures.rank_errors import TerminateHandler\n"
        "handler = TerminateHandler(lambda: print('reported', flush=True))\n"
        "terminate = getattr(ctypes.CDLL('libstdc++.so.6'), '_ZSt9terminatev')\n"
        "threading.Thread(target=terminate).start()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "reported\n")
    assert "terminate called" in done.stderr


def test_a_terminate_handler_can_be_taken_back() -> None:
    calls: list[int] = []
    handler = TerminateHandler(lambda: calls.append(1))
    handler.restore()
    handler.restore()
    assert calls == []
