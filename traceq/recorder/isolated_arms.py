"""Arms that cannot share a process: rounds of short processes with one arm each, of which the last round is traced."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from time import monotonic
from typing import Any, TypeAlias

from traceq.errors import UsageFault
from traceq.model import Arm, Manifest
from traceq.recorder.failures.root_cause import LaunchFailure
from traceq.recorder.isolated_steps import num_isolated_steps
from traceq.recorder.spec.parameters import check_arm, with_changes
from traceq.recorder.spec.plan import Plan, PlannedArm, planned_arm, with_samples
from traceq.recorder.spec.recipe import Outcome, Recipe
from traceq.runs.step_log import read_processes
from traceq.units import Unit, format_value

OnProgress: TypeAlias = Callable[[int, int], None]
OnMessage: TypeAlias = Callable[[str], None]
RunRanks: TypeAlias = Callable[[Plan, OnProgress, OnMessage], LaunchFailure | None]
"""Starts the ranks of a plan and waits for them."""
NextArms: TypeAlias = Callable[[Sequence[Outcome]], Sequence[PlannedArm]]
"""Returns the arms to run next, from how all arms so far ended; none at the end."""


def record_isolated(
    plan: Plan, next_arms: NextArms | None, run_ranks: RunRanks, on_progress: OnProgress, on_message: OnMessage
) -> LaunchFailure | None:
    """Run every arm in `plan.replicates` processes; return why the run failed, unless only single arms did.

    An arm that is skipped or out of memory is marked and not run again. The arms of `next_arms` run in the first
    round.
    """
    rounds = _Rounds(plan, next_arms, run_ranks, on_progress, on_message, list(plan.arms))
    for number in range(plan.replicates):
        queue = round_order(rounds.active_arms, number, plan.seed)
        while queue:
            if failure := rounds.run(queue[0], number, queue[1:]):
                return failure
            queue = queue[1:] or (rounds.add_next_arms() if number == 0 else [])
    return rounds.finish()


def next_arms_of(recipe: Recipe[Any], plan: Plan) -> NextArms | None:
    """Return the recipe's choice of further arms, each with its parameters and samples; None if it has no such."""
    choose = recipe.next_arms
    if choose is None:
        return None
    parameters = with_changes(recipe.parameters, plan.parameters)

    def next_arms(outcomes: Sequence[Outcome]) -> Sequence[PlannedArm]:
        arms = [planned_arm(arm, parameters) for arm in choose(parameters, outcomes)]
        return with_samples(recipe, arms, plan.num_ranks)

    return next_arms


def round_order(arms: Sequence[PlannedArm], number: int, seed: int) -> list[PlannedArm]:
    """Return the arms of the n-th round in the order they run.

    The first order is the recipe's, later ones are shuffled; each order is followed by its reverse, so that drift
    cancels.
    """
    order = random.Random(seed + number // 2).sample(list(arms), len(arms)) if number > 1 else list(arms)
    return order[::-1] if number % 2 else order


@dataclass(slots=True)
class _Rounds:
    """State of the recording: processes and steps run so far, all arms, and the arms that ended early.

    `process_s`: seconds that each process so far took.
    """

    plan: Plan
    next_arms: NextArms | None
    run_ranks: RunRanks
    on_progress: OnProgress
    on_message: OnMessage
    arms: list[PlannedArm]
    ended: set[str] = field(default_factory=set)
    process_s: list[float] = field(default_factory=list)
    num_processes: int = 0
    num_steps: int = 0

    @property
    def active_arms(self) -> list[PlannedArm]:
        return [planned for planned in self.arms if planned.arm.name not in self.ended]

    def run(self, planned: PlannedArm, number: int, queue: Sequence[PlannedArm]) -> LaunchFailure | None:
        """Run one process of an arm in the n-th round, before those of `queue`; return what ended the run, if any."""
        job = self._job(planned, number)
        planned_steps = self.num_steps + self._num_remaining_steps(number, (planned, *queue))
        self.on_message(f"{self._announcement(planned, number)}{self._rest_words(number, 1 + len(queue))}")
        began_s = monotonic()
        failure = self.run_ranks(
            job, lambda ended, _: self.on_progress(self.num_steps + ended, planned_steps), self.on_message
        )
        self.process_s.append(monotonic() - began_s)
        self.num_processes += 1
        self.num_steps += num_isolated_steps(job)
        status, fault = failure.arm_status if failure else ("", "")
        if not status:
            return failure
        self._mark_arm(planned.arm.name, status, fault)
        return None

    def _num_remaining_steps(self, number: int, queue: Sequence[PlannedArm]) -> int:
        """Return the steps of the rest of the n-th round, and of all arms in later rounds."""
        later = range(number + 1, self.plan.replicates)
        jobs = [(number, planned) for planned in queue]
        jobs += [(later_number, planned) for later_number in later for planned in self.active_arms]
        return sum(num_isolated_steps(self._job(planned, round_number)) for round_number, planned in jobs)

    def _announcement(self, planned: PlannedArm, number: int) -> str:
        if self.next_arms is not None:  # by which further arms may come
            return f"arm {planned.arm.name}"
        position = f"round {number + 1} of {self.plan.replicates}, " if self.plan.replicates > 1 else ""
        most = len(self.arms) * self.plan.replicates
        return f"{position}arm {planned.arm.name}: process {self.num_processes + 1} of {most}"

    def _rest_words(self, number: int, num_in_round: int) -> str:
        """Return how long all processes to come take, if each takes as long as the mean one so far; "" if unknown."""
        if self.next_arms is not None or not self.process_s:
            return ""
        num_to_come = num_in_round + (self.plan.replicates - 1 - number) * len(self.active_arms)
        return f"; the rest takes about {format_value(round(num_to_come * fmean(self.process_s) * 1e9), Unit.NS)}"

    def _job(self, planned: PlannedArm, number: int) -> Plan:
        """Return the plan of one process: a single arm, traced in the last round."""
        return replace(
            self.plan,
            arms=(planned,),
            num_ranks=planned.arm.num_ranks or self.plan.num_ranks,
            trace_steps=self.plan.trace_steps if number == self.plan.replicates - 1 else 0,
            process=self.num_processes,
            sharing=self.plan.num_ranks,
        )

    def _mark_arm(self, name: str, status: str, fault: str) -> None:
        """Write the arm's status into the manifest, delete the dumps of its waiting peers, and inform the user."""
        self.ended.add(name)
        manifest = self.plan.folder.read_manifest()
        arms = [replace(arm, status=status, fault=fault) if arm.name == name else arm for arm in manifest.arms]
        self.plan.folder.write_manifest(replace(manifest, arms=tuple(arms)))
        shutil.rmtree(self.plan.folder.stalled(0).parent, ignore_errors=True)
        self.on_message(f"arm {name}: {status}")

    def add_next_arms(self) -> list[PlannedArm]:
        """Add the arms to run next to the manifest and return them; empty at the end."""
        if self.next_arms is None:
            return []
        manifest = self.plan.folder.read_manifest()
        added = self.next_arms(_outcomes(self.plan, manifest))
        for planned in added:
            check_arm(planned.arm.name)
            if manifest.arm(planned.arm.name) or planned.arm.baseline:
                raise UsageFault(f"next_arms: arm {planned.arm.name} already exists, or is a second baseline")
        arms = (*manifest.arms, *(planned.arm for planned in added))
        self.plan.folder.write_manifest(replace(manifest, arms=arms))
        self.arms += added
        return list(added)

    def finish(self) -> LaunchFailure | None:
        """Mark the run complete; return a failure if no arm was recorded."""
        manifest = self.plan.folder.read_manifest()
        if not self.active_arms:
            reasons = "; ".join(f"arm {arm.name}: {arm.failure}" for arm in manifest.arms)
            return LaunchFailure(reasons, f"{self.plan.out}: no arm was recorded: {reasons}")
        self.plan.folder.write_manifest(replace(manifest, status="complete"))
        return None


def _outcomes(plan: Plan, manifest: Manifest) -> list[Outcome]:
    """Return how every arm so far ended, in the order of the manifest."""
    by_arm = {processes.arm: processes for processes in read_processes(plan.folder.steps, manifest)}

    def outcome(arm: Arm) -> Outcome:
        processes = by_arm.get(arm.name)
        if processes is None:
            return Outcome(arm, 0, 0)
        return Outcome(arm, int(processes.median_ns[-1]), int(processes.peak_bytes[-1]))

    return [outcome(arm) for arm in manifest.arms]
