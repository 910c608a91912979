"""What counts in a loop of which every few steps one does more than the others: steps that nothing else disturbed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from mmap import mmap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="recording needs torch")

import torch
from timed_plan import timed_plan

import traceq
from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.recorder.process.progress_counters import ProgressCounters
from traceq.recorder.process.world import World
from traceq.recorder.rank.rank_state import LoaderWorkers, LoopControl, Rank
from traceq.recorder.spec.phases import Phases
from traceq.recorder.spec.plan import Block, Plan
from traceq.recorder.timing.timed_steps import _missing_text, counted_steps, timed_steps
from traceq.runs.step_log import CoresLine, PairLine, StepLine, read_lines, read_pairs, timings_of

pytestmark = pytest.mark.torch

PLAN = timed_plan("off", "on")
CUDA = replace(PLAN, device="cuda")  # its halves; the steps are timed on the host


@dataclass
class Clock:
    """A host of which a regular step takes 1 us, one after an irregular step or the other arm 10 us, others 1 ms."""

    now_ns: int = 0
    before: str = ""
    is_regular: bool = True
    irregular_ns: int = 1_000_000
    loading_ns: int = 0
    """Time of an irregular step for its batch."""

    def run(self, arm: str, phases: Phases, *, is_regular: bool) -> None:
        is_disturbed = not self.is_regular or arm != self.before
        takes_ns = (10_000 if is_disturbed else 1_000) if is_regular else self.irregular_ns
        loading_ns = 0 if is_regular else self.loading_ns
        if loading_ns:
            with phases(DATALOAD_WAIT):
                self.now_ns += loading_ns
        self.now_ns += takes_ns - loading_ns
        self.before, self.is_regular = arm, is_regular


def run_loop(
    plan: Plan,
    folder: Path,
    is_regular: Callable[[int], bool],
    monkeypatch: pytest.MonkeyPatch,
    irregular_ns: int = 1_000_000,
    loading_ns: int = 0,
    num_renewed: int = 0,
) -> dict[str, str | int | float]:
    """Run the timed steps of a loop whose n-th step is regular or not, and return the facts of the recording."""
    clock = Clock(irregular_ns=irregular_ns, loading_ns=loading_ns)
    monkeypatch.setattr("traceq.recorder.spec.phases.perf_counter_ns", lambda: clock.now_ns)
    monkeypatch.setattr("traceq.recorder.timing.stopwatch.perf_counter_ns", lambda: clock.now_ns)
    monkeypatch.setattr("traceq.recorder.timing.stopwatch.thread_time_ns", lambda: clock.now_ns)
    control = LoopControl(was_regular=lambda: clock.is_regular)
    world = World(0, 0, 1, torch.device("cpu"))
    workers = LoaderWorkers(num_renewed=num_renewed)
    progress = ProgressCounters()
    rank = Rank(replace(plan, out=str(folder)), world, Phases(), progress, control=control, workers=workers)
    for number, arm in enumerate(timed_steps(rank)):
        clock.run(arm, rank.phases, is_regular=is_regular(number))
    return rank.facts


@pytest.mark.parametrize("plan", [CUDA, replace(PLAN, is_regular=False)], ids=["halves of 8", "halves of 4"])
@pytest.mark.parametrize("period", [3, 4, 5, 7, 16])
def test_only_steps_that_nothing_disturbed_count(
    plan: Plan, period: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_loop(plan, tmp_path, lambda number: number % period > 0, monkeypatch)
    pairs = {(each.a, each.b): each for each in read_pairs(tmp_path / "steps")}
    for each in pairs.values():
        assert each.first_ns.shape == (1, 16)
        assert set(each.first_ns.ravel()) == set(each.second_ns.ravel()) == {1_000}
    lines = [line for line in read_lines(tmp_path / "steps" / "rank0.jsonl") if isinstance(line, StepLine)]
    timings = timings_of([lines], "on")
    assert timings is not None
    assert set(timings.step_ns.ravel()) == {1_000}


def test_the_memory_is_noted_as_the_timed_steps_begin_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the steps before them."""
    kept = []

    def keep(number: int) -> bool:
        kept.append(mmap(-1, 1 << 20))  # from the system: the heap may have as much that was freed
        kept[-1].write(bytes(1 << 20))
        return True

    facts = run_loop(replace(PLAN, arms=PLAN.arms[:1]), tmp_path, keep, monkeypatch)
    grown = int(facts["memory_after_bytes"]) - int(facts["memory_before_bytes"])
    assert 0 < grown <= len(kept) << 20


@pytest.mark.parametrize("plan", [CUDA, replace(PLAN, is_regular=False)], ids=["halves of 8", "halves of 4"])
def test_where_every_other_step_is_irregular_those_after_one_count(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_loop(plan, tmp_path, lambda number: number % 2 > 0, monkeypatch)
    for pairs in read_pairs(tmp_path / "steps"):
        assert pairs.first_ns.shape == (1, 16)
        assert set(pairs.first_ns.ravel()) == {10_000}


def test_halves_of_two_with_an_irregular_step_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_loop(PLAN, tmp_path, lambda number: number % 9 > 0, monkeypatch)
    for pairs in read_pairs(tmp_path / "steps"):
        assert pairs.first_ns.shape == (1, 16)
        assert set(pairs.first_ns.ravel()) == {1_000}


def test_clocks_of_cores_are_read_in_the_first_blocks_of_the_control_and_then_in_one_of_four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_loop(replace(PLAN, steps=8 * PLAN.steps), tmp_path, lambda number: True, monkeypatch)
    lines = list(read_lines(tmp_path / "steps" / "rank0.jsonl"))
    blocks = sorted({line.pair // 16 for line in lines if isinstance(line, PairLine) and line.a == line.b})
    num_read = sum(isinstance(line, CoresLine) for line in lines)
    expected = sum(number < 4 or number % 4 == 0 for number in blocks)
    assert num_read == (expected if sys.platform == "linux" else 0)
    assert 4 < num_read < len(blocks)


@pytest.mark.parametrize(("irregular_ns", "counts"), [(1_000_000, False), (100, True)])
def test_the_use_of_cores_is_that_of_steps_that_count(
    irregular_ns: int, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where irregular steps, such as those of an evaluation, take a large part of each block."""
    run_loop(CUDA, tmp_path, lambda number: number % 8 > 0, monkeypatch, irregular_ns=irregular_ns)
    lines = read_lines(tmp_path / "steps" / "rank0.jsonl")
    assert any(isinstance(line, CoresLine) for line in lines) == (counts and sys.platform == "linux")


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_the_first_step_of_a_half_and_those_after_an_irregular_one_do_not_count(is_regular: list[bool]) -> None:
    counted = counted_steps(is_regular)
    assert all(is_regular[number] for number in counted)
    assert counted != [] or not any(is_regular[1:]) or len(is_regular) <= 2
    if len(is_regular) > 1:
        assert 0 not in counted
    after_regular = [number for number in counted if number and is_regular[number - 1]]
    assert len(is_regular) == 1 or counted == after_regular or not after_regular


def test_what_a_loop_does_in_every_second_step_is_in_half_of_the_steps_that_count(tmp_path: Path) -> None:
    """Before pairs of two steps of each arm, all steps that count were odd ones of the loop."""
    arms: list[str] = []
    with traceq.record(tmp_path / "run", arms=("off", "on"), steps=64, trace_steps=0) as rec:
        for _ in rec.steps(range(1000)):
            if not rec.rank.progress.is_done:
                arms.append(rec.arm)
    assert len(arms) == rec.rank.progress.num_planned
    last_of_halves = [number for number, (arm, after) in enumerate(pairwise(arms)) if arm != after]
    for arm in ("off", "on"):
        is_odd = [number % 2 for number in last_of_halves if arms[number] == arm]
        assert 0.25 < sum(is_odd) / len(is_odd) < 0.75


def test_missing_pairs_of_the_control_are_of_one_arm_with_itself() -> None:
    control, other = Block("off", "off", 0, (True,)), Block("off", "on", 0, (True,))
    assert _missing_text(control, 3).startswith("3 pairs of off with itself ")
    assert _missing_text(other, 1).startswith("1 pair of off and on ")
