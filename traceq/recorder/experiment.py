"""One rank's recording: build the arms, time them unprofiled, then trace each; the order the method asks for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist

from traceq.errors import RecordingFailed
from traceq.model import Manifest, Pairs
from traceq.recorder.catalogue import Entry
from traceq.recorder.context import Context
from traceq.recorder.environment import describe
from traceq.recorder.exchange import exchange_pairs
from traceq.recorder.flight import dump_flight
from traceq.recorder.journal import Journal
from traceq.recorder.lines import read_source_lines
from traceq.recorder.parameters import checked
from traceq.recorder.phases import Phases
from traceq.recorder.plan import Plan, PlannedArm
from traceq.recorder.pulse import Pulse
from traceq.recorder.recipe import Step
from traceq.recorder.schedule import Group, comparisons, pairs_for, schedule
from traceq.recorder.stopwatch import Stopwatch
from traceq.recorder.timing import Timing, time_groups, warm_up
from traceq.recorder.window import Window, profiled
from traceq.recorder.world import World
from traceq.runs.embedded import Embedded, encode
from traceq.runs.layout import RunFolder

__all__ = ["steps_per_half", "run_rank"]


def steps_per_half(device: str) -> int:
    """8 on CUDA, where hosts run ahead and a half has to be long enough to show what an arm does to that; else 1."""
    return 8 if device == "cuda" else 1


@dataclass(frozen=True, slots=True)
class Rank:
    """Everything one rank records with."""

    plan: Plan
    world: World
    context: Context
    phases: Phases
    pulse: Pulse
    steps: dict[str, Step]

    @property
    def folder(self) -> RunFolder:
        """The run that is being written."""
        return self.plan.folder


def run_rank(plan: Plan, entry: Entry, world: World) -> None:
    """Record this rank's part of the run. All ranks call it; rank 0 keeps the manifest."""
    pulse = Pulse(plan.pulse, world.local_rank)
    phases = Phases(entry.recipe.phases, on_enter=pulse.beat)
    context = Context(world.rank, world.local_rank, world.size, world.device, phases, steps_per_half(plan.device))
    journal = Journal(plan.folder.samples(world.rank))
    rank = Rank(plan, world, context, phases, pulse, _build(plan, entry, context))
    manifest = _publish(rank, plan.manifest(entry))
    pairs = _time(rank, journal)
    journal.close()
    if plan.trace_steps:
        for planned in plan.arms:
            _trace(rank, planned, manifest, pairs)
    _publish(rank, replace(manifest, status="complete"))


def _build(plan: Plan, entry: Entry, context: Context) -> dict[str, Step]:
    """Each arm's step. Arms with the same parameters share one build, so that nothing but the arm differs."""
    built: list[tuple[Any, Step]] = []
    steps: dict[str, Step] = {}
    for planned in plan.arms:
        parameters = checked(entry.recipe.parameters, planned.parameters)
        step = next((step for other, step in built if other == parameters), None)
        if step is None:
            step = entry.recipe.build(context, parameters)
            built.append((parameters, step))
        steps[planned.arm.name] = _bound(step, planned.runs)
    return steps


def _bound(step: Step, runs: str) -> Step:
    return lambda _: step(runs)


def _publish(rank: Rank, manifest: Manifest) -> Manifest:
    """Write the manifest with what is known by now; every rank returns the same kind of it."""
    known = replace(manifest, environment={**describe(rank.world), **rank.context.facts})
    if rank.world.rank == 0:
        rank.folder.write_manifest(known)
    return known


def _time(rank: Rank, journal: Journal) -> tuple[Pairs, ...]:
    plan, half = rank.plan, rank.context.steps_per_half
    timed = [planned for planned in plan.arms if planned.arm.timed]
    compared = comparisons([planned.arm for planned in timed])
    groups = schedule(compared, pairs_for(plan.steps, half), plan.seed)
    rank.pulse.expect(_num_steps(plan, len(timed), groups, half))
    stopwatch = Stopwatch(rank.world.device, rank.phases)
    timing = Timing(rank.steps, stopwatch, rank.pulse, half, plan.seed)
    warm_up(timing, timed, plan.warmup_steps, journal)
    return exchange_pairs(time_groups(timing, groups, journal))


def _num_steps(plan: Plan, num_timed: int, groups: Sequence[Group], half: int) -> int:
    warmup = -(-plan.warmup_steps // (2 * half)) * 2 * half * num_timed
    timed = sum(2 * (len(group.b_second) + 1) * half for group in groups)
    windows = [Window(plan.folder.path, steps).total_steps for steps in (1, plan.trace_steps) if plan.trace_steps]
    return warmup + timed + sum(windows) * len(plan.arms)


def _trace(rank: Rank, planned: PlannedArm, manifest: Manifest, pairs: tuple[Pairs, ...]) -> None:
    """One step with stacks, then the window, which carries the lines found in the first."""
    arm, folder = planned.arm.name, rank.folder
    stacks = folder.stacks(arm, rank.world.rank)
    _profile(rank, arm, Window(stacks, 1, stacks=True))
    lines = read_source_lines(stacks, manifest.phases)
    embedded = encode(Embedded(manifest, arm, pairs, lines))
    since_ns = time.time_ns()
    _profile(rank, arm, Window(folder.trace(arm, rank.world.rank), rank.plan.trace_steps, embedded))
    seen = dump_flight(folder.flight(arm, rank.world.rank), since_ns, time.time_ns())
    _note_collectives(rank, arm, seen)


def _profile(rank: Rank, arm: str, window: Window) -> None:
    with profiled(window, rank.world.device, rank.phases) as step_ended:
        for _ in range(window.total_steps):
            rank.steps[arm](arm)
            step_ended()
            rank.pulse.step_ended()
    rank.phases.take()
    dist.barrier()  # exporting stalls ranks unequally


def _note_collectives(rank: Rank, arm: str, seen: Counter[str]) -> None:
    """Keep what the window's steps communicated; a DDP that reduces nothing is not one."""
    if not seen:
        return
    if rank.context.facts.get("wrapper") == "DistributedDataParallel" and not seen["all_reduce"]:
        raise RecordingFailed(
            f"arm {arm}: DDP on {rank.world.size} ranks, and no all_reduce in the window: {dict(seen)}"
        )
    rank.context.facts[f"collectives.{arm}"] = ", ".join(f"{name} {num}" for name, num in sorted(seen.items()))
