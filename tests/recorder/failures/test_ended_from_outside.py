"""A recording that is ended from outside ends quickly, says why, and leaves nothing running."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from recording import start

from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import read_pairs

pytest.importorskip("torch", reason="recording needs torch")
pytestmark = pytest.mark.torch

SHORT = ("--steps", "16", "--trace-steps", "0")
LONG = ("--steps", "10000")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "end_at", "reason", "measured"),
    [
        ("kill", 150, "killed by SIGKILL", [(2, 16)]),
        ("kill", 60, "killed by SIGKILL", []),
        ("raise", 60, "ValueError: an injected fault", []),
        ("exit", 60, "called sys.exit(0)", []),
    ],
)
def test_a_rank_that_ends_early_ends_the_command_is_named_and_what_was_measured_is_kept(
    tmp_path: Path, end: str, end_at: int, reason: str, measured: list[tuple[int, int]]
) -> None:
    started = start(tmp_path, *SHORT, "--set", f"end={end}", "--set", f"end_at={end_at}")
    done = started.finish()
    assert done.code == 1
    assert started.left_running() == []
    folder = RunFolder(done.out)
    manifest = folder.read_manifest()
    assert manifest.status == "failed"
    assert manifest.fault.startswith("rank 1: ")
    assert manifest.fault.endswith(reason)
    assert manifest.fault in next(line for line in done.stderr.splitlines() if line.startswith("traceq:"))
    assert [pairs.first_ns.shape for pairs in read_pairs(folder.steps)] == measured


@pytest.mark.parametrize(
    ("number", "code", "status"),
    [
        pytest.param(signal.SIGINT, 130, "interrupted", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, "interrupted", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, -9, "recording", marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_the_launcher_ends_its_ranks(
    tmp_path: Path, number: signal.Signals, code: int, status: str
) -> None:
    started = start(tmp_path, *LONG)
    started.signal_when_measuring(number)
    done = started.finish()
    assert done.code == code
    assert started.left_running() == []
    assert RunFolder(done.out).read_manifest().status == status
    assert "Traceback" not in done.stderr
    messages = [line for line in done.stderr.splitlines() if line.startswith("interrupted")]
    assert messages == ([] if code < 0 else [f"interrupted; {done.out} keeps what was measured"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_do_not_stop_coming_end_it_as_one_does(tmp_path: Path, number: signal.Signals) -> None:
    started = start(tmp_path, *LONG)
    started.signal_when_measuring(number)
    while started.process.poll() is None:
        time.sleep(0.01)
        started.process.send_signal(number)
    done = started.finish()
    assert done.code == 128 + number
    assert done.stderr.splitlines()[-1] == f"interrupted; {done.out} keeps what was measured"
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert started.left_running() == []
    assert RunFolder(done.out).read_manifest().status == "interrupted"


@pytest.mark.slow
def test_a_full_disk_is_named_with_the_rank_that_met_it(full_disk: Path, tmp_path: Path) -> None:
    started = start(tmp_path, *LONG)
    done = started.finish()
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("traceq:")]
    assert (done.code, message[message.index("rank ") + 6 :]) == (1, ": OSError: [Errno 28] No space left on device")
    assert "Traceback" not in done.stderr.partition(message)[0]
    assert started.left_running() == []
    assert RunFolder(full_disk).read_manifest().fault == message[message.index("rank ") :]


@pytest.mark.slow
def test_an_arm_that_runs_out_of_memory_is_marked_and_the_others_are_recorded(tmp_path: Path) -> None:
    done = start(tmp_path, "--steps", "16", "--trace-steps", "1", "--set", "end=memory").finish()
    assert done.code == 1
    assert "out of memory in slow" in done.stderr.splitlines()[-1]
    assert "slow: out of memory; restarting" in done.stderr
    run = RunFolder(done.out)
    manifest = run.read_manifest()
    fast, slow = manifest.arms
    assert (manifest.status, fast.name, fast.failure, slow.name) == ("complete", "fast", "", "slow")
    assert re.fullmatch(r"out of memory: rank 1: OutOfMemoryError: .* 2\.00 GiB\.", slow.failure)
    assert f"traceq: note: arm slow: {slow.failure}" in done.stderr.splitlines()
    assert [(pairs.a, pairs.b, pairs.first_ns.shape) for pairs in read_pairs(run.steps)] == [("fast", "fast", (2, 8))]
    assert run.trace("fast", 1).is_file()
    assert not run.trace("slow", 1).exists()
