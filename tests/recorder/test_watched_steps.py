"""A rank of a watched job: each step is a row, and a fault of a capture is a line and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
from torch._C._distributed_c10d import HashStore

from traceq.errors import RecordingFailed
from traceq.long_runs.step_store import CAPTURED, REGULAR, RowReader
from traceq.long_runs.watch_folder import CaptureRequest, WatchFolder
from traceq.recorder import watched_steps
from traceq.recorder.jobs.step_tracker import StepTracker
from traceq.recorder.process.progress_counters import ProgressCounters
from traceq.recorder.process.world import StoreExchange, World
from traceq.recorder.rank.rank_state import Rank
from traceq.recorder.spec.phases import Phases
from traceq.recorder.spec.plan import Plan
from traceq.recorder.watched_steps import WatchedSteps
from traceq.runs.step_log import ClocksLine

pytestmark = pytest.mark.torch
USUAL = ("L", "F", "B", "O0")


class Loop:
    """Events of a loop, without the loop."""

    def __init__(self, out: Path, exchange: StoreExchange | None = None) -> None:
        self.tracker = StepTracker()
        for _ in range(9):
            self.run_events()
        self.tracker.add("L")
        world = World(0, 0, 1 if exchange is None else 2, torch.device("cpu"), exchange=exchange)
        plan = Plan(
            run_id="run", out=str(out), device="cpu", num_ranks=world.size, steps=0, trace_steps=3, seed=0, arms=()
        )
        self.steps = WatchedSteps(Rank(plan, world, Phases(), ProgressCounters()), self.tracker.was_regular)
        self.out = out

    def run_events(self, *more: str) -> None:
        for event in (*USUAL, *more):
            self.tracker.add(event)

    def step(self, *more: str, num: int = 1) -> None:
        for _ in range(num):
            for event in ("F", "B", "O0", *more, "L"):
                self.tracker.add(event)
            self.steps.phases.elapsed_ns["forward"] += 1000
            self.steps.end_step()

    def look(self) -> None:
        """Let the next step be the last of a second."""
        self.steps._due_ns = 0
        self.step()

    def close(self) -> np.ndarray:
        self.steps.close()
        return RowReader(self.out / "steps", 0).take()


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path)


def test_each_step_is_a_row_and_irregular_ones_say_so(loop: Loop) -> None:
    loop.step(num=20)
    loop.step("f", "f")
    loop.look()
    loop.step(num=3)
    rows = loop.close()
    assert list(rows["step"]) == list(range(25))
    assert list(np.flatnonzero(rows["flags"] != REGULAR)) == [20]
    assert rows["forward"] == pytest.approx(1e-6, rel=1e-3)
    assert (rows["wall"] > 0).all()
    assert np.flatnonzero(~np.isnan(rows["memory"])).tolist() == [15]
    assert rows["time"][-1] == pytest.approx(time.time(), abs=60)


def test_the_clock_is_read_once_a_second_between_steps(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_steps, "read_clocks", lambda _: time.sleep(0.5) or [ClocksLine(1980, 2619, 0x40, 60)])
    loop.step(num=20)
    loop.look()
    loop.step(num=2)
    rows = loop.close()
    assert np.flatnonzero(~np.isnan(rows["clock"])).tolist() == [20]
    assert (rows["clock"][20], rows["throttled"][20]) == (1980e6, 1)
    assert (rows["wall"] < 0.4).all()


def test_without_a_gpu_the_clock_is_that_of_the_core(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "3").write_text("2400000\n")
    thread = tmp_path / "stat"
    thread.write_text("77 (a (b) c) R " + " ".join(["0"] * 35) + " 3 0 0\n")
    monkeypatch.setattr(watched_steps, "_THREAD", str(thread))
    monkeypatch.setattr(watched_steps, "_CORE_KHZ", str(tmp_path / "{}"))
    loop.look()
    rows = loop.close()
    assert rows["clock"].tolist() == [2.4e9]
    assert np.isnan(rows["throttled"]).all()


def test_what_is_done_once_a_second_is_in_no_step(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.steps, "_look_for_request", lambda: time.sleep(0.5))
    loop.step()
    loop.look()
    loop.step(num=2)
    assert (loop.close()["wall"] < 0.4).all()


def ask(loop: Loop, first_step: int) -> None:
    WatchFolder(loop.out).write_capture(CaptureRequest("capture-1", first_step, 1, ""))


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that steps are traced into, three each."""
    folders: list[str] = []

    def record(rank: Rank, _: object) -> Iterator[str]:
        folders.append(rank.plan.out)
        yield from ("run",) * 3

    monkeypatch.setattr(watched_steps, "recorded_steps", record)
    return folders


def test_steps_are_traced_from_the_step_that_was_asked_for(loop: Loop, captured: list[str]) -> None:
    ask(loop, 10)
    loop.look()
    loop.step(num=20)
    assert captured == [str(loop.out / "capture-1")]
    assert np.flatnonzero(loop.close()["flags"] == CAPTURED).tolist() == [10, 11, 12]


def test_a_request_that_comes_late_is_none(loop: Loop, captured: list[str]) -> None:
    loop.step(num=10)
    ask(loop, 10)
    loop.look()
    loop.step(num=20)
    assert (captured, (loop.close()["flags"] == REGULAR).all()) == ([], True)


def test_no_rank_traces_unless_all_know_of_it(tmp_path: Path, captured: list[str]) -> None:
    store = HashStore()
    here, other = (StoreExchange(store, rank, 2, timedelta(seconds=5)) for rank in range(2))
    loop = Loop(tmp_path, here)
    ask(loop, 10)
    loop.look()
    loop.step(num=10)
    assert captured == []
    other.accept("capture/capture-1/10")
    assert not other.all_accept("capture/capture-1/10")
    ask(loop, 20)
    other.accept("capture/capture-1/20")
    loop.look()
    loop.step(num=10)
    assert len(captured) == 1
    assert other.all_accept("capture/capture-1/20")
    loop.close()


def test_a_fault_of_a_capture_ends_captures_alone(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def record(*_: object) -> Iterator[str]:
        yield "run"
        raise RecordingFailed("the disk is full")

    monkeypatch.setattr(watched_steps, "recorded_steps", record)
    ask(loop, 5)
    loop.look()
    loop.step(num=20)
    assert capsys.readouterr().err == "traceq: rank 0: no more steps are traced: the disk is full\n"
    rows = loop.close()
    assert len(rows) == 21
    assert np.flatnonzero(rows["flags"] == CAPTURED).tolist() == [5]
