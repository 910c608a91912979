"""One rank's recording: the arms timed unprofiled, then each one traced; the order the method asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from traceq.model import Manifest
from traceq.recorder.isolated_rank import alone_steps
from traceq.recorder.process.progress_counters import Pulse
from traceq.recorder.process.rank_errors import note_arm
from traceq.recorder.process.world import World
from traceq.recorder.rank.rank import Rank
from traceq.recorder.rank.wrappers import doubt, wrapper_facts
from traceq.recorder.spec.catalogue import Entry
from traceq.recorder.spec.context import Context
from traceq.recorder.spec.parameters import checked
from traceq.recorder.spec.phases import Phases
from traceq.recorder.spec.plan import Plan
from traceq.recorder.spec.recipe import Step
from traceq.recorder.timing.timed_steps import num_timed_steps, timed_steps
from traceq.recorder.tracing.traced_steps import num_traced_steps, traced_steps
from traceq.runs.step_log import pairs_of

__all__ = ["num_steps", "recorded_steps", "run_rank"]


def run_rank(plan: Plan, entry: Entry, world: World) -> None:
    """Record this rank's part of a recipe. All ranks call it."""
    pulse = Pulse(plan.pulse, world.rank)
    phases = Phases(entry.recipe.phases, on_enter=pulse.beat)
    rank = Rank(plan, world, phases, pulse)
    if world.shares_device:
        rank.say(f"{world.size} ranks share the GPUs they find: gloo goes between them, not NCCL")
    is_alone = plan.process >= 0
    context = Context(
        world.rank,
        world.local_rank,
        world.size,
        world.device,
        phases,
        plan.steps_per_half,
        rank.facts,
        rank.say,
        plan.arms[0].runs if is_alone else "",
    )
    steps = _build(plan, entry, context)
    asked = alone_steps(rank) if is_alone else recorded_steps(rank, plan.manifest(entry.name, entry.recipe.question))
    for arm in asked:
        try:
            steps[arm](arm)
        except Exception as fault:
            note_arm(fault, arm)
            raise


def recorded_steps(rank: Rank, manifest: Manifest) -> Iterator[str]:
    """Yields the arm of each step to run, in order; the run is complete on disk when it ends."""
    if not rank.plan.max_minutes:  # else the timing itself finds out how many there may be
        rank.pulse.expect(num_steps(rank.plan))
    manifest = replace(manifest, hosts=tuple(peer.host for peer in rank.world.peers))
    rank.publish(manifest)
    pairs = pairs_of(rank.world.gather((yield from timed_steps(rank))))
    rank.facts.update(wrapper_facts(rank.facts))
    if dropped := doubt(rank.facts):
        rank.say(f"traceq: note: {dropped}")
    rank.pulse.expect(num_traced_steps(rank.plan))
    known = rank.publish(manifest)
    for planned in rank.plan.arms if rank.plan.trace_steps else ():
        yield from traced_steps(rank, planned.arm.name, known, pairs)
    rank.publish(replace(manifest, status="complete"))
    rank.world.barrier()  # whichever rank reads the run next finds it complete


def num_steps(plan: Plan) -> int:
    """How many steps a recording asks for where their number is planned."""
    return num_timed_steps(plan) + num_traced_steps(plan)


def _build(plan: Plan, entry: Entry, context: Context) -> dict[str, Step]:
    """Each arm's step. Arms with the same parameters share one build, so that nothing but the arm differs; that others
    do not is noted.
    """
    built: list[tuple[Any, Step]] = []
    steps: dict[str, Step] = {}
    for planned in plan.arms:
        parameters = checked(entry.recipe.parameters, planned.parameters)
        step = next((step for other, step in built if other == parameters), None)
        if step is None:
            step = entry.recipe.build(context, parameters)
            built.append((parameters, step))
        steps[planned.arm.name] = _running(step, planned.runs)
    if len(built) > 1:
        context.separate_builds(*steps)
    return steps


def _running(step: Step, arm: str) -> Step:
    """The step of a recipe's arm, whatever that arm is called in the run."""
    return lambda _: step(arm)
