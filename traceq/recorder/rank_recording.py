"""The recording of one rank: first unprofiled steps of all arms, then a profiled window of each arm.

`launch` starts it as `python -m traceq.recorder.rank_recording PLAN`, or another launcher does.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections import UserDict
from collections.abc import Callable, Collection, Generator, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from traceq.errors import RecordingFailed, TraceqError
from traceq.locations import Most, read_whole
from traceq.model import Manifest
from traceq.recorder.failures.external_launcher import note_abort, note_end
from traceq.recorder.failures.hang_diagnosis import dump_flight_recorder, wait_for_dumps
from traceq.recorder.failures.hang_watch import watched_loop
from traceq.recorder.failures.rank_errors import (
    TerminateHandler,
    error_text,
    is_peer_error,
    note_arm,
    reserve_descriptors,
    write_error,
)
from traceq.recorder.failures.run_status import named_deletion
from traceq.recorder.isolated_arms import isolated_steps
from traceq.recorder.process.child_processes import die_with_parent
from traceq.recorder.process.progress_counters import ProgressCounters
from traceq.recorder.process.signals import Stopped, stoppable
from traceq.recorder.process.world import World, check_shared, join_world, leave_world
from traceq.recorder.rank.environment_facts import wrapper_facts, wrapper_warning
from traceq.recorder.rank.rank_state import Rank, worker_line_facts
from traceq.recorder.spec.catalogue import Entry, find_recipe
from traceq.recorder.spec.parameters import with_changes
from traceq.recorder.spec.phases import Phases
from traceq.recorder.spec.plan import Plan
from traceq.recorder.spec.prepare import Request, prepare, resolve_device
from traceq.recorder.spec.recipe import Context, Step
from traceq.recorder.timing.timed_steps import num_timed_steps, timed_steps
from traceq.recorder.tracing.traced_steps import num_traced_steps, traced_steps
from traceq.runs.step_log import pairs_of

if TYPE_CHECKING:
    from traceq.recorder.spec.plan import PlannedArm
    from traceq.recorder.spec.recipe import Recipe

FactValue = str | int | float


class VariedFacts(UserDict[str, FactValue]):
    """Facts of one build, each also written to those of the run as a fact of the arms that the build is for.

    What the recipe notes as `key`, or as `key.<the arm that runs>`, is `key.<arm of the run>` there if the recipe
    declares the key as one of arms; `key` if each arm has a process of its own. What it notes of its other arms, which
    are not in the run, is left out.
    """

    def __init__(
        self,
        of_run: MutableMapping[str, FactValue],
        recipe: Recipe[object],
        arms: Sequence[PlannedArm],
        *,
        is_isolated: bool = False,
    ) -> None:
        """`of_run`: the facts to write to. `arms`: those of the run that share the build."""
        super().__init__()
        self._of_run, self._arms, self._is_isolated = of_run, arms, is_isolated
        self._declared: Collection[str] = {fact.key for fact in recipe.facts if not fact.of_run}
        self._runs: Collection[str] = {arm.name for arm in recipe.arms}

    def __setitem__(self, key: str, value: FactValue) -> None:
        """Note a fact of the build."""
        super().__setitem__(key, value)
        declared, _, runs = key.rpartition(".")
        if key in self._declared:
            declared, runs = key, ""
        elif declared not in self._declared or runs not in self._runs:
            self._of_run[key] = value
            return
        for planned in self._arms:
            if runs in ("", planned.runs):
                self._of_run[declared if self._is_isolated else f"{declared}.{planned.arm.name}"] = value


_USED = 0.9
"""Part of a loop's steps that a recording counts on: irregular ones are run again."""


def run_rank(plan: Plan, entry: Entry, world: World, progress: ProgressCounters) -> None:
    """Record this rank's part of a recipe; all ranks call it."""
    phases = Phases(entry.recipe.phases, on_enter=progress.count_phase)
    rank = Rank(plan, world, phases, progress)
    if world.shares_device:
        rank.say(f"{world.size} ranks share the visible GPUs, so they use gloo, not NCCL")
    is_isolated = plan.process >= 0
    context = Context(
        world.rank,
        world.local_rank,
        world.size,
        world.device,
        phases,
        plan.steps_per_half,
        rank.facts,
        rank.say,
        plan.arms[0].runs if is_isolated else "",
    )
    steps = _build_steps(plan, entry, context)
    if is_isolated:
        arms = isolated_steps(rank)
    else:
        arms = recorded_steps(rank, plan.manifest(entry.name, entry.recipe.question, facts=entry.recipe.facts))
    for arm in arms:
        try:
            steps[arm](arm)
        except Exception as error:
            note_arm(error, arm)
            raise


def recorded_steps(rank: Rank, manifest: Manifest) -> Generator[str, None, None]:
    """Yield the arm of each step to run, in order; the run is complete on disk when the iterator ends."""
    return rank.account.around(named_deletion(rank.plan.folder, _recorded_steps(rank, manifest)), rank.phases)


def _recorded_steps(rank: Rank, manifest: Manifest) -> Generator[str, None, None]:
    if not rank.plan.max_minutes:  # else timing determines the number of steps
        rank.progress.plan_steps(num_steps(rank.plan))
    manifest = replace(manifest, hosts=tuple(peer.host for peer in rank.world.peers))
    rank.publish(manifest)
    rank.warn_of_blocking()
    pairs = pairs_of(rank.world.gather((yield from timed_steps(rank))))
    rank = rank.remaining
    rank.facts.update(wrapper_facts(rank.facts))
    if warning := wrapper_warning(rank.facts):
        rank.say(f"traceq: note: {warning}")
    rank.note_wall_time()
    rank.progress.plan_steps(num_traced_steps(rank.plan))
    published = rank.publish(manifest)
    if rank.plan.trace_steps:
        rank.workers.sample()
        yield from traced_steps(rank, published, pairs)
        rank.facts.update(worker_line_facts(rank.world.gather(rank.workers.lines())))
    rank.note_wall_time()
    rank.plan.folder.samples(rank.world.rank).stat()  # raises if what was written is gone
    rank.world.barrier()
    rank.publish(replace(manifest, status="complete"))
    rank.world.barrier()  # so that every rank reads a complete run from here on


def rest_of_cycle(rank: Rank) -> Generator[str, None, None]:
    """Yield the only arm for further steps, until those and what the job does between them are weighed rightly."""
    return rank.account.around(_rest_of_cycle(rank), rank.phases)


def _rest_of_cycle(rank: Rank) -> Generator[str, None, None]:
    is_announced = False
    while not rank.world.share(rank.account.holds_whole_cycles):
        if not is_announced:
            rank.say("traceq: the steps are recorded; it goes on to weigh what the job does between runs of them")
            is_announced = True
        yield rank.plan.arms[0].arm.name
        rank.control.is_regular()


def num_steps(plan: Plan) -> int:
    """Return the number of steps of a recording without `--until`."""
    return num_timed_steps(plan) + num_traced_steps(plan)


def fitting_steps(plan: Plan, num_ended: int) -> int:
    """Return the largest number of measured steps whose recording fits into a loop of so many steps; 0 for none."""
    if plan.max_minutes or plan.process >= 0:
        return 0
    numbers = range(plan.steps - 1, 0, -1)
    return next((steps for steps in numbers if num_steps(replace(plan, steps=steps)) <= _USED * num_ended), 0)


def _build_steps(plan: Plan, entry: Entry, context: Context) -> dict[str, Step]:
    """Return the step of each arm, by arm.

    Arms with the same parameters share one build, so that they differ in nothing but the arm. Separate builds are
    noted in the facts.
    """
    builds: list[tuple[Any, Step]] = []
    steps: dict[str, Step] = {}
    is_varied = any(planned.arm.name != planned.runs for planned in plan.arms)
    for planned in plan.arms:
        parameters = with_changes(entry.recipe.parameters, planned.parameters)
        step = next((step for built, step in builds if built == parameters), None)
        if step is None:
            alike = [other for other in plan.arms if other.parameters == planned.parameters]
            facts = VariedFacts(context.facts, entry.recipe, alike, is_isolated=plan.process >= 0)
            step = entry.recipe.build(replace(context, facts=facts) if is_varied else context, parameters)
            builds.append((parameters, step))
        steps[planned.arm.name] = _step_of_arm(step, planned.runs)
    if len(builds) > 1:
        context.separate_builds(*steps)
    return steps


def _step_of_arm(step: Step, arm: str) -> Step:
    """Return the step bound to an arm of the recipe, whatever the name of that arm in the run."""
    return lambda _: step(arm)


def main() -> None:
    """Record one rank; its output goes to its log, its exception to a file that the launcher reads."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # die at once without a traceback: the launcher reports the reason
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=False)  # lets the launcher see where a rank hangs
    plan = Plan.from_bytes(read_whole(Path(sys.argv[1]), Most.STATUS))
    rank = int(os.environ["RANK"])
    reserve_descriptors()
    try:
        world = join_world(plan.device)
        handler = TerminateHandler(lambda: note_abort(plan, world))
        progress = ProgressCounters(plan.progress_path, rank)
        run_rank(plan, find_recipe(plan.recipe), world, progress)
        handler.restore()
    except SystemExit as exit_:
        error = RuntimeError(f"the recipe called sys.exit({exit_.code})")
        write_error(plan.faults_folder, rank, error)
        raise error from exit_
    except BaseException as error:
        write_error(plan.faults_folder, rank, error)
        if dump_flight_recorder(plan.folder, rank, error):
            wait_for_dumps(plan.folder, plan.num_ranks)
        raise
    progress.finish()
    leave_world()


def record_joined(request: Request) -> Plan | None:
    """Record this rank's part and return the plan on rank 0, None on the others; all ranks call it.

    RecordingFailed on a rank that lost its peers names the one that failed, if it is known.
    """
    with stoppable() as ignore_signals:
        try:
            reserve_descriptors()
            world = join_world(resolve_device(request.device))
            plan = _shared_plan(request, world)
            _record(plan, world, ignore_signals)
        except Stopped as stopped:
            raise stopped.as_exit from None
    leave_world()
    return plan if world.rank == 0 else None


def _record(plan: Plan, world: World, ignore_signals: Callable[[], None]) -> None:
    try:
        try:
            with watched_loop(plan, world) as progress:
                run_rank(plan, find_recipe(plan.recipe), world, progress)
        except BaseException:
            ignore_signals()
            raise
    except BaseException as error:  # a second handler: a signal may arrive before ignore_signals()
        text = note_end(plan, world, error)
        if not isinstance(error, Stopped) and is_peer_error(error_text(error)):
            raise RecordingFailed(f"{plan.out}: {text}") from error
        raise


def _shared_plan(request: Request, world: World) -> Plan:
    """Return rank 0's plan, or raise its error, on every rank, so that no rank is left waiting."""
    message: list[bytes | str] = [""]
    if world.rank == 0:
        try:
            message = [prepare(request, world.size)[0].to_bytes()]
        except TraceqError as error:
            dist.broadcast_object_list([str(error)], src=0)
            raise
    dist.broadcast_object_list(message, src=0)
    if isinstance(message[0], str):
        raise RecordingFailed(f"rank 0: {message[0]}")
    plan = Plan.from_bytes(message[0])
    check_shared(plan.folder.path, world)
    return plan


if __name__ == "__main__":
    main()
