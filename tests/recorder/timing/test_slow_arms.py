"""An arm that is many times slower than the baseline is left out after its first steps, on all ranks alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
from timed_plan import timed_plan

from traceq.model import MUCH_SLOWER
from traceq.recorder.process.progress_counters import ProgressCounters
from traceq.recorder.process.world import World
from traceq.recorder.rank.rank_state import Rank
from traceq.recorder.spec.phases import Phases
from traceq.recorder.spec.plan import Plan
from traceq.recorder.timing.timed_steps import slow_arms, timed_steps
from traceq.runs.step_log import StepLine, read_lines, read_pairs

pytestmark = pytest.mark.torch

PLAN = replace(timed_plan("off", "slow", "on"), max_slowdown=5.0)


@dataclass
class Times:
    """Steps of 1 ms; of arm `slow` of `slow_ns`, and its first one of 1 s."""

    slow_ns: int
    now_ns: int = 0
    has_begun: bool = False

    def run(self, arm: str) -> None:
        if arm == "slow":
            self.now_ns += self.slow_ns if self.has_begun else 1_000_000_000
            self.has_begun = True
        else:
            self.now_ns += 1_000_000


def run_loop(plan: Plan, times: Times, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Rank, list[str]]:
    """Run the timed steps of a loop; return its rank and the arm of each step."""
    monkeypatch.setattr("traceq.recorder.timing.stopwatch.perf_counter_ns", lambda: times.now_ns)
    monkeypatch.setattr("traceq.recorder.timing.stopwatch.thread_time_ns", lambda: times.now_ns)
    world = World(0, 0, 1, torch.device("cpu"))
    rank = Rank(replace(plan, out=str(folder)), world, Phases(), ProgressCounters())
    arms = []
    for arm in timed_steps(rank):
        times.run(arm)
        arms.append(arm)
    return rank, arms


@pytest.mark.parametrize("max_minutes", [0.0, 1.0])
def test_a_slow_arm_runs_four_steps_and_the_others_as_ever(
    max_minutes: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, max_minutes=max_minutes)
    rank, arms = run_loop(plan, Times(12_500_000), tmp_path, monkeypatch)
    assert arms.count("slow") == 4
    assert {(each.a, each.b) for each in read_pairs(tmp_path / "steps")} == {("off", "on"), ("off", "off")}
    of_arms = {arm.name: arm.failure for arm in rank.publish(rank.plan.manifest("", "")).arms}
    slow = of_arms.pop("slow")
    assert of_arms == {"off": "", "on": ""}
    assert slow.startswith(f"{MUCH_SLOWER}: ")
    assert "first 4 steps" in slow
    assert " 12.5 times a step of off" in slow
    lines = [line for line in read_lines(tmp_path / "steps" / "rank0.jsonl") if isinstance(line, StepLine)]
    assert sum(line.arm == "slow" for line in lines) == 4


@pytest.mark.parametrize(("max_slowdown", "slow_ns"), [(5.0, 4_900_000), (0.0, 12_500_000)])
def test_an_arm_of_which_only_the_first_step_is_slow_is_measured_and_any_where_none_is_left_out(
    max_slowdown: float, slow_ns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, _ = run_loop(replace(PLAN, max_slowdown=max_slowdown), Times(slow_ns), tmp_path, monkeypatch)
    assert rank.left_out == {}
    (slow,) = (each for each in read_pairs(tmp_path / "steps") if each.b == "slow")
    assert slow.b_second.size == 16


@dataclass
class Fitful(Times):
    """Of arm `slow` the third step is as short as those of others."""

    num: int = 0

    def run(self, arm: str) -> None:
        self.num += arm == "slow"
        self.now_ns += self.slow_ns if arm == "slow" and self.num != 3 else 1_000_000


def test_an_arm_that_is_slow_but_for_one_step_runs_two_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of two threads on a busy core: its pairs would take the time of all others."""
    rank, arms = run_loop(PLAN, Fitful(12_500_000), tmp_path, monkeypatch)
    assert arms.count("slow") == 8
    assert rank.left_out["slow"].startswith("half of its first 8 steps took at least 12.5 times a step of off")


@pytest.mark.parametrize("max_minutes", [0.0, 1.0])
def test_where_every_other_arm_is_slow_the_baseline_is_timed_alone(
    max_minutes: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, arms=PLAN.arms[:2], max_minutes=max_minutes)
    _, arms = run_loop(plan, Times(12_500_000), tmp_path, monkeypatch)
    assert arms.count("slow") == 4
    assert {(each.a, each.b) for each in read_pairs(tmp_path / "steps")} == {("off", "off")}


def test_an_arm_that_is_slow_on_one_rank_only_is_measured() -> None:
    class World:
        def gather(self, ratios: dict[str, float]) -> list[dict[str, float]]:
            return [ratios, {"slow": 6.0, "on": 1.5}]

    rank: Any = SimpleNamespace(plan=PLAN, world=World())
    times_ns = {"off": (10, 10, 12), "slow": (90, 70, 80), "on": (60, 61, 62)}
    steps = [StepLine(arm, "", "", -1, 0, 0, {}, ns, ns, 0, 0) for arm, times in times_ns.items() for ns in times]
    (left_out,) = slow_arms(rank, steps).items()
    assert left_out[0] == "slow"
    assert " 6.0 times a step of off" in left_out[1]
