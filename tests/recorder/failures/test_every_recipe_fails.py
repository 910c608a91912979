"""Whatever ends a recipe, the rank is named, the manifest says why, and nothing is left behind."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from patience import patient
from recording import Fault, Started, start

from traceq.recorder.spec.catalogue import recipe_names
from traceq.runs.run_folder import RunFolder

pytest.importorskip("torch", reason="recording needs torch")
pytest.importorskip("accelerate", reason="the recipes gather metrics through accelerate")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

LONG = ("--ranks", "2", "--steps", "10000", "--trace-steps", "1")
WAYS = ("SIGKILL", "raise", "hang", "exit", "_exit0")
ALONE = ("scaling_ab",)  # recipes whose first arm has one rank
SUITE = ("outlier_ab", "SIGKILL")  # one of them outside of `make faults`

recipes = pytest.mark.parametrize("recipe", [pytest.param(name, marks=pytest.mark.faults) for name in recipe_names()])


def check(started: Started, status: str, fault: str) -> None:
    """Assert that it ended with this status and left nothing behind."""
    run = RunFolder(started.out)
    assert (run.read_manifest().status, run.read_manifest().fault) == (status, fault)
    assert started.left_running() == []
    assert not list(run.path.rglob("*.part"))
    assert not (run.path / ".reserve").exists()
    assert not list(started.scratch.glob("traceq-*"))


@pytest.mark.parametrize(
    ("recipe", "how"),
    [
        pytest.param(name, how, marks=[] if (name, how) == SUITE else [pytest.mark.faults])
        for name in recipe_names()
        for how in WAYS
        if name not in ALONE or how != "hang"  # no other rank waits
    ],
)
def test_a_rank_that_ends_is_named(tmp_path: Path, recipe: str, how: str) -> None:
    rank = 0 if recipe in ALONE else 1
    patience_s = 15 if how == "hang" else 90
    fault = Fault(rank, 1.0, how, after=str(tmp_path / "run/**/rank0.jsonl"), patience_s=patience_s)
    never = ("--hang-after", "0") if how == "hang" else ()  # else that ends it, where the timeout grows with the load
    started = start(tmp_path, *LONG, *never, recipe=recipe, fault=fault)
    done = started.finish(seconds=170)
    assert done.code == 1, done.stderr
    assert time.time() - (tmp_path / "fired").stat().st_mtime < patient(patience_s + 20)
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("traceq: ") and "note:" not in line]
    check(started, "failed", message[message.index(f"rank {rank}: ") :])
    assert message.endswith(fault.texts)


@recipes
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_it_and_a_second_one_changes_nothing(tmp_path: Path, recipe: str, times: int) -> None:
    started = start(tmp_path, *LONG, recipe=recipe)
    started.signal_when_measuring(signal.SIGINT)
    for _ in range(times - 1):
        time.sleep(0.2)
        started.process.send_signal(signal.SIGINT)
    done = started.finish()
    assert done.code == 130
    assert done.stderr.splitlines()[-1] == f"interrupted; {done.out} keeps what was measured"
    assert "Traceback" not in done.stderr
    check(started, "interrupted", "ended by SIGINT")


@recipes
def test_a_full_disk_is_named(full_disk: Path, tmp_path: Path, recipe: str) -> None:
    started = start(tmp_path, *LONG, recipe=recipe)
    done = started.finish(seconds=170)
    assert done.code == 1
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("traceq: ") and "note:" not in line]
    assert message.endswith("No space left on device")
    check(started, "failed", message[message.index("rank ") :])
    assert RunFolder(full_disk).read_manifest().status == "failed"
