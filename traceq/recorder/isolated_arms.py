"""Arms that cannot share a process: rounds of short processes with one arm each, of which the last round is traced.

Steps of such a process are timed unprofiled, then, in one of the processes of an arm, traced.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from time import monotonic
from typing import Any, TypeAlias

from traceq.errors import UsageFault
from traceq.model import Arm, Manifest
from traceq.recorder.failures.rank_errors import LaunchFailure
from traceq.recorder.failures.run_status import named_deletion
from traceq.recorder.rank.environment_facts import cpu_peak_facts, environment_facts, wrapper_facts
from traceq.recorder.rank.rank_state import Rank, worker_line_facts
from traceq.recorder.spec.parameters import check_arm, with_changes
from traceq.recorder.spec.plan import Plan, PlannedArm, planned_arm, with_samples
from traceq.recorder.spec.recipe import Outcome, Recipe
from traceq.recorder.timing.clocks import CoreClocks, clock_facts, core_facts, read_clocks
from traceq.recorder.timing.stopwatch import Stopwatch, reset_peak_memory
from traceq.recorder.timing.timed_steps import Journal, regular_on_all_ranks, step_line
from traceq.recorder.tracing.traced_steps import num_traced_steps, traced_steps
from traceq.runs.step_log import SETTLING, WARM_UP, ClocksLine, CoresLine, Line, read_processes
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


_STEPS_PER_BLOCK = 16


def isolated_steps(rank: Rank) -> Generator[str, None, None]:
    """Yield the plan's only arm for each step to run; the results are on disk when the iterator ends."""
    return rank.account.around(named_deletion(rank.plan.folder, _isolated_steps(rank)), rank.phases)


def _isolated_steps(rank: Rank) -> Generator[str, None, None]:
    arm = rank.plan.arms[0].arm
    rank.progress.plan_steps(num_isolated_steps(rank.plan))
    rank.control.set_arm(arm.name)
    if rank.plan.process == 0:  # the others say the same
        rank.warn_of_blocking()
    clocks = yield from _time_steps(rank, arm.name)
    device_facts = {key: value for key, value in clock_facts(rank.world.gather(clocks)).items() if value}
    rank.facts.update(wrapper_facts(rank.facts))
    rank.note_wall_time()
    manifest = _publish(rank, arm, device_facts)
    if rank.plan.trace_steps:
        rank.workers.sample()
        yield from traced_steps(rank, manifest, processes=read_processes(rank.plan.folder.steps, manifest))
        rank.facts.update(worker_line_facts(rank.world.gather(rank.workers.lines())))
        _publish(rank, arm, device_facts)


def num_isolated_steps(plan: Plan) -> int:
    """Return the number of steps that `isolated_steps` yields."""
    settling = sum(plan.steps_per_half for _ in _blocks(plan))
    return (plan.warmup_steps + settling + plan.steps if plan.steps else 0) + num_traced_steps(plan)


def _blocks(plan: Plan) -> Iterator[range]:
    """Yield the numbers of the measured steps in blocks, between which the samples are written."""
    return (range(plan.steps)[first : first + _STEPS_PER_BLOCK] for first in range(0, plan.steps, _STEPS_PER_BLOCK))


def _time_steps(rank: Rank, arm: str) -> Generator[str, None, list[ClocksLine]]:
    """Run the warm-up, then blocks of steps, of each of which the first ones settle and do not count."""
    clocks: list[ClocksLine] = []
    cores: list[CoresLine] = []
    settling = [SETTLING] * rank.plan.steps_per_half
    stopwatch = Stopwatch(rank.world.device, rank.phases)
    rank.account.collected_ns = lambda: stopwatch.collector.collected_ns
    with Journal(rank.plan.folder.samples(rank.world.rank)) as journal, stopwatch:
        if rank.plan.steps:
            journal.write((yield from _run(rank, stopwatch, arm, [WARM_UP] * rank.plan.warmup_steps)))
            reset_peak_memory(rank.world.device)
        for block in _blocks(rank.plan):
            rank.world.barrier()
            before = list(read_clocks(rank.world.device))
            lines = yield from _run(rank, stopwatch, arm, [*settling, *block])
            journal.write([*before, *lines])
            clocks += before
            cores += [line for line in lines if isinstance(line, CoresLine)]
    rank.facts.update(core_facts(rank.world.gather(cores), [peer.host for peer in rank.world.peers]))
    return clocks


def _run(rank: Rank, stopwatch: Stopwatch, arm: str, numbers: Sequence[int]) -> Generator[str, None, list[Line]]:
    """Run steps with these numbers and return their lines; those that were irregular on any rank do not count."""
    regular: list[bool] = []
    cores = CoreClocks(rank.workers.pids)
    cores.start()
    stopwatch.mark()
    for draw, number in enumerate(numbers):
        rank.reseed(number if number >= 0 else draw)
        yield arm
        stopwatch.mark()
        rank.progress.count_step()
        regular.append(rank.control.is_regular())
    use = cores.lines(len(numbers))
    (on_all_ranks,) = regular_on_all_ranks(rank, [regular])
    counted = [number if is_regular else SETTLING for number, is_regular in zip(numbers, on_all_ranks, strict=True)]
    lines = zip(counted, stopwatch.take(), strict=True)
    return [*use, *(step_line(arm, time, pair=number, process=rank.plan.process) for number, time in lines)]


def _publish(rank: Rank, arm: Arm, device_facts: dict[str, str | int | float]) -> Manifest:
    """Return the run's manifest, updated with this process's facts about its arm, on every rank; rank 0 writes it.

    No other process writes it meanwhile: one launcher starts all ranks, on one machine, one process of the run at a
    time.
    """
    folder = rank.plan.folder
    if rank.world.device.type == "cpu":
        rank.facts.update(cpu_peak_facts(rank.facts))
    if rank.world.rank == 0:
        before = folder.read_manifest()
        arms = tuple(replace(each, facts=rank.facts) if each.name == arm.name else each for each in before.arms)
        facts = {**before.environment, **environment_facts(rank.world), **device_facts, "world_size": before.num_ranks}
        hosts = (rank.world.peers[0].host,) * before.num_ranks
        folder.write_manifest(replace(before, arms=arms, phases=rank.phases.names, environment=facts, hosts=hosts))
    rank.world.barrier()
    return folder.read_manifest()
