"""Arms that cannot share a process: short processes of one arm each, all arms in every round, the last round traced."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from traceq.errors import UsageFault
from traceq.model import Arm, Manifest
from traceq.recorder.isolated_rank import num_alone_steps
from traceq.recorder.process.root_cause import Failed
from traceq.recorder.spec.names import check_arm
from traceq.recorder.spec.parameters import checked
from traceq.recorder.spec.plan import Plan, PlannedArm, planned_arm, with_samples
from traceq.recorder.spec.recipe import Outcome, Recipe
from traceq.runs.processes import read_processes

__all__ = ["order_of", "record_apart"]

OnProgress: TypeAlias = Callable[[int, int], None]
OnNews: TypeAlias = Callable[[str], None]
RunRanks: TypeAlias = Callable[[Plan, OnProgress, OnNews], Failed | None]
"""Starts the ranks of a plan and waits for them."""


def record_apart(
    plan: Plan, recipe: Recipe[Any], run_ranks: RunRanks, on_progress: OnProgress, on_news: OnNews
) -> Failed | None:
    """Run every arm in `plan.replicates` processes; why the run ended, where that is no matter of one arm.

    An arm that is skipped or out of memory is marked and not run again. Further arms that the recipe asks for run in
    the first round, as it learns how those before ended.
    """
    rounds = _Rounds(plan, recipe, run_ranks, on_progress, on_news, list(plan.arms))
    for number in range(plan.replicates):
        queue = order_of(rounds.alive, number, plan.seed)
        while queue:
            if failed := rounds.run(queue[0], number, queue[1:]):
                return failed
            queue = queue[1:] or (rounds.more() if number == 0 else [])
    return rounds.end()


def order_of(arms: Sequence[PlannedArm], number: int, seed: int) -> list[PlannedArm]:
    """Arms of the n-th round in the order they run: the recipe's, later shuffled, and each order once the other way
    round, so that drift cancels.
    """
    order = random.Random(seed + number // 2).sample(list(arms), len(arms)) if number > 1 else list(arms)
    return order[::-1] if number % 2 else order


@dataclass(slots=True)
class _Rounds:
    """What has been run so far: how many processes and steps, and which arms there are."""

    plan: Plan
    recipe: Recipe[Any]
    run_ranks: RunRanks
    on_progress: OnProgress
    on_news: OnNews
    arms: list[PlannedArm]
    ended: set[str] = field(default_factory=set)
    num_processes: int = 0
    num_steps: int = 0

    @property
    def alive(self) -> list[PlannedArm]:
        return [planned for planned in self.arms if planned.arm.name not in self.ended]

    def run(self, planned: PlannedArm, number: int, queue: Sequence[PlannedArm]) -> Failed | None:
        """One process of an arm in the n-th round, `queue` after it; what ended the run, if something did."""
        job = self._job(planned, number)
        planned_steps = self.num_steps + self._num_left(number, (planned, *queue))
        self.on_news(self._announcement(planned, number, len(queue)))
        failed = self.run_ranks(
            job, lambda ended, _: self.on_progress(self.num_steps + ended, planned_steps), self.on_news
        )
        self.num_processes += 1
        self.num_steps += num_alone_steps(job)
        status, fault = failed.of_arm if failed else ("", "")
        if not status:
            return failed
        self._mark(planned.arm.name, status, fault)
        return None

    def _num_left(self, number: int, queue: Sequence[PlannedArm]) -> int:
        """Steps of what is left of the n-th round, and of all arms in the rounds after it."""
        later = range(number + 1, self.plan.replicates)
        jobs = [(number, planned) for planned in queue] + [(at, planned) for at in later for planned in self.alive]
        return sum(num_alone_steps(self._job(planned, at)) for at, planned in jobs)

    def _announcement(self, planned: PlannedArm, number: int, num_left: int) -> str:
        of_rounds = f"round {number + 1} of {self.plan.replicates}, " if self.plan.replicates > 1 else ""
        return f"{of_rounds}arm {planned.arm.name}" + (f", {num_left} to go" if num_left else "")

    def _job(self, planned: PlannedArm, number: int) -> Plan:
        """The plan of one process: its arm alone, traced in the last round."""
        return replace(
            self.plan,
            arms=(planned,),
            num_ranks=planned.arm.num_ranks or self.plan.num_ranks,
            trace_steps=self.plan.trace_steps if number == self.plan.replicates - 1 else 0,
            process=self.num_processes,
            sharing=self.plan.num_ranks,
        )

    def _mark(self, name: str, status: str, fault: str) -> None:
        """Say so in the manifest and to the user; what peers left behind, who waited for this arm, tells nothing."""
        self.ended.add(name)
        known = self.plan.folder.read_manifest()
        arms = [replace(arm, status=status, fault=fault) if arm.name == name else arm for arm in known.arms]
        self.plan.folder.write_manifest(replace(known, arms=tuple(arms)))
        shutil.rmtree(self.plan.folder.stalled(0).parent, ignore_errors=True)
        self.on_news(f"arm {name}: {status}")

    def more(self) -> list[PlannedArm]:
        """Arms that the recipe wants next, put into the manifest; none where it has enough."""
        if self.recipe.next_arms is None:
            return []
        known = self.plan.folder.read_manifest()
        parameters = checked(self.recipe.parameters, self.plan.parameters)
        wanted = self.recipe.next_arms(parameters, _outcomes(self.plan, known))
        for arm in wanted:
            check_arm(arm.name)
            if known.arm(arm.name) or arm.baseline:
                raise UsageFault(f"next_arms: arm {arm.name} is there already, or is a second baseline")
        found = with_samples(self.recipe, [planned_arm(arm, parameters) for arm in wanted], self.plan.num_ranks)
        self.plan.folder.write_manifest(replace(known, arms=(*known.arms, *(planned.arm for planned in found))))
        self.arms += found
        return list(found)

    def end(self) -> Failed | None:
        """Call the run complete, unless there is nothing in it."""
        known = self.plan.folder.read_manifest()
        if not self.alive:
            told = "; ".join(f"arm {arm.name}: {arm.ended}" for arm in known.arms)
            return Failed(told, f"{self.plan.out}: no arm was recorded: {told}")
        self.plan.folder.write_manifest(replace(known, status="complete"))
        return None


def _outcomes(plan: Plan, known: Manifest) -> list[Outcome]:
    """How every arm so far ended, in the order of the manifest."""
    by_arm = {found.arm: found for found in read_processes(plan.folder.steps, known)}

    def of(arm: Arm) -> Outcome:
        found = by_arm.get(arm.name)
        return Outcome(arm, int(found.median_ns[-1]), int(found.peak_bytes[-1])) if found else Outcome(arm, 0, 0)

    return [of(arm) for arm in known.arms]
