"""The recording of one rank of an unedited job: its plan, its toggles, and the steps that the job then runs."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from time import time
from typing import Any

import msgspec
import torch
from torch.utils.data import DataLoader

from traceq.errors import RecordingFailed, TraceqError
from traceq.locations import Most, read_whole, without_secrets
from traceq.model import BATCHES_PER_STEP, NO_EFFECT, OPTIMIZER_STEPS, Arm
from traceq.recorder.failures.run_status import mark_ended
from traceq.recorder.isolated_arms import isolated_steps
from traceq.recorder.jobs.backwards import LossByArm, gradient_lines, loss_texts
from traceq.recorder.jobs.injection import MODERATE, Injection, JobArm, JobRequest, Note, ToggleRequest, job_arms
from traceq.recorder.jobs.job_facts import (
    JobBatches,
    JobLoader,
    device_note,
    found_text,
    job_facts,
    worker_arms_text,
    world_on_devices,
)
from traceq.recorder.jobs.root_models import COMPILED, compiled_functions
from traceq.recorder.jobs.step_tracker import StepTracker
from traceq.recorder.process.progress_counters import ProgressCounters
from traceq.recorder.process.world import World, check_shared
from traceq.recorder.rank.rank_state import LoopControl, Rank, loader_settings
from traceq.recorder.rank.wall_account import WallAccount
from traceq.recorder.rank_recording import recorded_steps, rest_of_cycle
from traceq.recorder.spec.phases import Phases
from traceq.recorder.spec.plan import Plan, PlannedArm
from traceq.recorder.spec.prepare import default_steps
from traceq.recorder.toggles.toggle import Job, Toggle, applicable_toggles, create_toggle
from traceq.recorder.tracing.line_marks import PREFIX, read_rows, rows_of_last_step
from traceq.runs.run_folder import RunFolder

_RECIPE = "dataloader"
"""Name of the recipe whose results these are; its loader is another one."""

_QUESTION = "Can the job's input pipeline keep up with its training?"
_FETCH, _TO_DEVICE = "fetch", "h2d"
_DEFAULT_STEPS = 300

_CLAIM = ".claim"
_PEERS_WITHIN_S = 10.0
_MAX_SLOWDOWN = 5.0
"""Of what is tried unasked: how slow it is, to the percent, is not worth so much of the time for all that is tried."""


@dataclass(frozen=True, slots=True)
class JobRank:
    """One rank of a job that is being recorded; `steps` yields the arm of each step that the job runs next.

    `is_brief`: it ends with them, also in the middle of a cycle of the loop.
    """

    rank: Rank
    toggles: Sequence[Toggle]
    arms: Sequence[JobArm]
    steps: Generator[str, None, None]
    tracker: StepTracker
    loader: JobLoader = field(default_factory=JobLoader)
    losses: LossByArm = field(default_factory=LossByArm)
    began_s: float = field(default_factory=time)
    is_brief: bool = False

    def close(self) -> None:
        """Stop timing and profiling, and restore the job's own values."""
        with suppress(Exception):
            self.steps.close()
        _restore(self.toggles)

    def run(self) -> Iterator[str]:
        """Return the arm of each step of the recording, which is complete then; then what a whole cycle still lacks."""
        return chain(self.steps, self._rest())

    def _rest(self) -> Generator[str, None, None]:
        self._note_results()
        if not self.rank.plan.replicates and len(self.arms) == 1 and not self.is_brief:
            yield from rest_of_cycle(self.rank)

    def finish(self) -> None:
        """Write where the wall time went into the manifest, and print that the job's part is done."""
        rank = self.rank
        rank.note_wall_time()
        rank.update_manifest()
        rank.world.barrier()  # so that the launcher of every node reads what rank 0 has written
        if rank.plan.process < 0:  # else the launcher counts the processes
            rank.say(f"traceq: the recording is complete, after {rank.progress.num_ended:,} steps")

    def _note_results(self) -> None:
        """Write the work of arms, their losses, and those without an effect into the manifest, on rank 0.

        Arms may differ in how many batches they take, or in how many iterations of the loop are one step; what is usual
        may have changed since the first steps. Also what torch has compiled meanwhile. Losses are facts of arms that
        have processes of their own.
        """
        world, plan, baseline = self.rank.world, self.rank.plan, self.arms[0].arm.name
        num_batches = {each.arm.name: self.tracker.num_batches(each.arm.name) for each in self.arms}
        samples = world.gather({name: num * self.loader.samples_per_batch for name, num in num_batches.items()})
        moments: dict[str, tuple[float, ...]] = {}
        with suppress(Exception):  # a loss that cannot be read is no reason to lose the recording
            moments = self.losses.moments(baseline)
        losses = loss_texts(world.gather(moments), baseline)
        if world.rank:
            return
        faults, is_apart = self._faults(), plan.process >= 0

        def noted(arm: Arm) -> Arm:
            if arm.name not in num_batches:
                return arm
            steps = {f"{OPTIMIZER_STEPS}{name}": num for name, num in self.tracker.optimizer_steps(arm.name).items()}
            loss = {MODERATE.key: losses[arm.name]} if is_apart and arm.name in losses else {}
            facts = {**arm.facts, **steps, BATCHES_PER_STEP: num_batches[arm.name], **loss}
            arm = replace(arm, samples_per_step=round(sum(each[arm.name] for each in samples)), facts=facts)
            return replace(arm, status=NO_EFFECT, fault=faults[arm.name]) if arm.name in faults else arm

        manifest, environment = plan.folder.read_manifest(), {}
        if functions := compiled_functions(self.began_s):
            environment[COMPILED] = functions
        if not is_apart:
            environment |= {f"{MODERATE.key}.{arm}": text for arm, text in losses.items()}
        arms = tuple(map(noted, manifest.arms))
        plan.folder.write_manifest(replace(manifest, arms=arms, environment={**manifest.environment, **environment}))

    def _faults(self) -> dict[str, str]:
        """Return the arms that took no effect, each with the reason."""
        faults = self._own_faults()
        if any(toggle.changes_ops for toggle in self.toggles):
            if self.rank.plan.trace_steps:
                return {**self._equal_ops(), **faults}
            self.rank.say("traceq: note: without traced steps it is not proven that every arm changed something")
        return faults

    def _changed(self) -> Iterator[tuple[str, list[Toggle]]]:
        """Yield each arm that ran but the baseline, with the toggles that it has at another value."""
        baseline, *others = self.arms
        for each in others:
            if each.arm.name not in self.rank.left_out:
                numbers = zip(self.toggles, each.values, baseline.values, strict=True)
                yield each.arm.name, [toggle for toggle, number, before in numbers if number != before]

    def _own_faults(self) -> dict[str, str]:
        """Return the arms of a single toggle that says that its value took no effect, with its reason."""
        changed = ((arm, toggles[0]) for arm, toggles in self._changed() if len(toggles) == 1)
        reasons = {arm: getattr(toggle, "no_effect", "") for arm, toggle in changed}
        return {arm: reason for arm, reason in reasons.items() if reason}

    def _equal_ops(self) -> dict[str, str]:
        """Return the arms that should issue other ops than the baseline, and do not: these have no verdict."""
        proven_by_ops = [arm for arm, toggles in self._changed() if any(toggle.changes_ops for toggle in toggles)]
        folder, baseline = self.rank.plan.folder, self.arms[0].arm.name
        equal = arms_with_equal_ops(folder, baseline, proven_by_ops)
        return {arm: f"it issues the same {num:,} ops per step as {baseline}" for arm, num in equal.items()}

    def leave(self, reason: str) -> None:
        """Tell the other ranks that this one takes part no longer."""
        with suppress(Exception):
            self.rank.world.leave(reason)

    def wait_for_peers(self) -> None:
        """Wait until the device is idle and all ranks are here."""
        if self.rank.world.device.type == "cuda":
            torch.cuda.synchronize(self.rank.world.device)
        _leave_in_order(self.rank.world)


def start_rank(
    request: JobRequest,
    job: Job,
    tracker: StepTracker,
    progress: ProgressCounters,
    loader: JobLoader,
    gradients: Mapping[str, str],
    account: WallAccount,
) -> JobRank | None:
    """Return this rank of the recording, once all ranks of the job have come.

    `gradients`: what was found of each parameter, in a dry run. None after a dry run, and if another process of a job
    without a process group is recorded. Raises TraceqError, on every rank, for steps that are not alike, and for a
    toggle that the job does not have.
    """
    assert tracker.pattern is not None
    world = world_on_devices(job)
    request = common_request(request, world)
    differ = f"the steps of the loop differ: {tracker.pattern.text}; evaluate and save less often, or use traceq.record"
    _raise_first(world.gather("" if tracker.pattern.is_reliable else differ))
    if world.size == 1 and not claims(Path(request.out)):
        return None
    if request.is_dry:
        request = msgspec.structs.replace(request, toggles=(*request.toggles, *_common_toggles(job, world)))
    is_together = request.improves == "together"
    arms = (JobArm(request.arm, ()),) if request.arm else job_arms(request.toggles, together=is_together)
    samples = round(sum(world.gather(loader.samples_per_batch * tracker.pattern.num_batches)))
    if len(arms) == 1:  # others may change how many batches a step has
        arms = (msgspec.structs.replace(arms[0], arm=replace(arms[0].arm, samples_per_step=samples)),)
    is_regular = all(world.gather(tracker.pattern.is_regular))
    plan = replace(plan_of_job(request, arms, world), is_regular=is_regular)
    announced = Rank(plan, world, Phases(), progress)
    if request.process <= 0:  # the same in each process of an arm
        announced.say(f"traceq: {found_text(job, tracker, world)}")
        if note := tracker.pattern.warm_up_note:
            announced.say(f"traceq: note: {note}")
        if note := device_note(job, world.device):
            announced.say(f"traceq: note: {note}")
    if request.is_dry:
        toggles_text = " ".join(f"{toggle.name}={','.join(toggle.values)}" for toggle in request.toggles)
        announced.say(f"traceq: toggles that apply: {toggles_text or 'none'}")
        for line in gradient_lines(world.gather(gradients)):
            announced.say(f"traceq: {line}")
    _say_of_workers(announced, request, loader)
    if request.is_dry:
        announced.say(
            f"traceq: where its time goes: {without_secrets(shlex.join(['traceq', 'record', '--', *request.command]))}"
        )
        _leave_in_order(world)
        return None
    if request.improves == "survey":
        common = _common_toggles(job, world)
        if world.rank == 0:  # for the launcher
            plan.folder.toggles.write_bytes(msgspec.json.encode(common))
    values = {each.arm.name: each.values for each in arms}
    toggles: list[Toggle] = []
    try:
        _create_toggles(toggles, request, job, world)
        _check_effects(request, toggles, world, values)
    except Exception:
        _restore(toggles)
        raise

    changes = {
        arm: [partial(toggle.apply, number) for toggle, number in zip(toggles, of_arm, strict=True)]
        for arm, of_arm in values.items()
    }

    def set_arm(arm: str) -> None:
        tracker.arm = arm
        for apply in changes[arm]:
            apply()

    def was_regular() -> bool:
        is_regular = tracker.was_regular()
        account.classify(None if is_regular else tracker.kind_of_step(), tracker.size_of_step)
        return is_regular

    tracker.say = announced.say
    tracker.steps_of_pair = 2 * plan.steps_per_half + plan.most_lead_steps if len(arms) > 1 else 0
    rank = replace(
        announced,
        control=LoopControl(set_arm, was_regular),
        workers=loader.workers,
        account=account,
        samples_per_step=lambda: loader.samples_per_batch * tracker.num_batches(tracker.arm),
    )
    rank.facts.update({**job_facts(job, tracker), **loader.settings})
    if request.arm:
        _note_arm(plan, arms[0].arm, world)
        return JobRank(rank, toggles, arms, isolated_steps(rank), tracker, loader)
    manifest = plan.manifest("", "", facts=(MODERATE,))
    is_brief = request.improves == "survey"
    return JobRank(rank, toggles, arms, recorded_steps(rank, manifest), tracker, loader, is_brief=is_brief)


def common_request(request: JobRequest, world: World) -> JobRequest:
    """Return the request that all ranks follow: on several nodes each launcher wrote one, with another run and seed.

    That of the first folder by name, as which node has rank 0 may differ between the processes of arms. Raises
    TraceqError on every rank if nodes run different arms, or do not share the folder.
    """
    requests = world.gather(request)
    first = min(requests, key=lambda each: each.out)
    fault = ""
    if len({(each.process, each.arm.name if each.arm else "") for each in requests}) > 1:
        fault = "nodes run different arms: start the same command on each"
    elif len({(each.run_id, each.started) for each in requests if each.out == first.out}) > 1:
        fault = f"{first.out}: another folder on each node; all ranks need a shared file system"
    _raise_first(world.gather(fault))
    check_shared(Path(first.out), world)
    if first.out != request.out:
        Injection.of_run(request.out).note(Note.ELSEWHERE, first.out)
    return msgspec.structs.replace(first, watch=request.watch, hang_s=request.hang_s)


def _note_arm(plan: Plan, arm: Arm, world: World) -> None:
    """Write into the manifest how many ranks and samples this arm has: the job alone knows."""
    if world.rank == 0:
        manifest = plan.folder.read_manifest()
        if manifest.num_ranks == 0:
            manifest = replace(manifest, num_ranks=world.size)
        num_ranks = world.size if world.size != manifest.num_ranks else 0
        arms = tuple(
            replace(each, num_ranks=num_ranks, samples_per_step=arm.samples_per_step) if each.name == arm.name else each
            for each in manifest.arms
        )
        plan.folder.write_manifest(replace(manifest, arms=arms))
    world.barrier()


def _common_toggles(job: Job, world: World) -> tuple[ToggleRequest, ...]:
    """Return the toggles with the values that apply on every rank."""
    first, *others = world.gather(applicable_toggles(job))
    common = {
        name: [value for value in first[name] if all(value in each.get(name, ()) for each in others)] for name in first
    }
    return tuple(ToggleRequest(name, tuple(values)) for name, values in common.items() if len(values) > 1)


def _say_of_workers(rank: Rank, request: JobRequest, loader: JobLoader) -> None:
    """Print how to compare numbers of workers, and that toggles do not reach what workers run."""
    num_workers = loader.settings.get("num_workers")
    if num_workers is None:
        return
    if request.improves == "survey" or request.is_dry:
        if text := worker_arms_text(request.command, num_workers, _script_text()):
            rank.say(f"traceq: {text}")
    elif num_workers and any(not toggle.name.startswith("@") for toggle in request.toggles):
        rank.say("traceq: note: the DataLoader's workers keep the values they started with: no toggle reaches them")


def _script_text() -> str:
    """Return the source of the program that runs; "" where it has none."""
    with suppress(OSError, ValueError):
        path = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
        return read_whole(path, Most.SOURCE).decode()
    return ""


def _leave_in_order(world: World) -> None:
    """Wait until the other ranks have left on rank 0, which may serve their store; the others leave at once."""
    if world.exchange is None:
        return
    with suppress(Exception):
        if world.rank > 0:
            world.exchange.leave("complete")
        else:
            world.exchange.wait_until_left(_PEERS_WITHIN_S)


def claims(out: Path) -> bool:
    """Return True for the first process of a job without a process group: its run holds one rank."""
    try:
        (out / _CLAIM).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def plan_of_job(request: JobRequest, arms: Sequence[JobArm], world: World) -> Plan:
    """Return the plan, the same on every rank."""
    device, compared_ranks = world.device.type, 1 if request.replicates else world.size
    return Plan(
        run_id=request.run_id,
        out=request.out,
        device=device,
        num_ranks=world.size,
        steps=default_steps(device, compared_ranks, len(arms)) if request.steps is None else request.steps,
        trace_steps=request.trace_steps,
        seed=request.seed,
        arms=tuple(PlannedArm(each.arm) for each in arms),
        max_minutes=request.max_minutes,
        reseeds=False,
        started=request.started,
        process=request.process,
        max_slowdown=_MAX_SLOWDOWN if request.improves == "trial" else 0.0,
        replicates=request.replicates,
    )


def _create_toggles(toggles: list[Toggle], request: JobRequest, job: Job, world: World) -> None:
    """Append the toggles, in the order of the request; TraceqError on every rank if any rank lacks one."""
    fault = ""
    try:
        for option in request.toggles:
            toggles.append(create_toggle(option.name, option.values, job))
    except TraceqError as error:
        fault = str(error)
    _raise_first(world.gather(fault))


def _restore(toggles: Sequence[Toggle]) -> None:
    """Restore the job's own values, last change first; one that fails does not keep the others."""
    for toggle in reversed(toggles):
        with suppress(Exception):
            toggle.restore()


def _check_effects(
    request: JobRequest, toggles: Sequence[Toggle], world: World, arms: Mapping[str, Sequence[int]]
) -> None:
    """Apply every arm once, the baseline last; TraceqError on every rank if a value is not in effect on any of them."""
    faults = []
    for values in reversed(list(arms.values())):
        for toggle, option, number in zip(toggles, request.toggles, values, strict=True):
            toggle.apply(number)
            if fault := toggle.fault(number):
                faults.append(f"--toggle {option.name}: {option.values[number]!r} is not in effect: {fault}")
    _raise_first(world.gather(faults[0] if faults else ""))


def _raise_first(faults: Sequence[str]) -> None:
    """Raise the first fault of any rank."""
    for rank, fault in enumerate(faults):
        if fault:
            raise RecordingFailed(fault if len(set(faults)) == 1 else f"rank {rank}: {fault}")


def arms_with_equal_ops(folder: RunFolder, baseline: str, arms: Sequence[str]) -> dict[str, int]:
    """Return the arms whose traced step issues the same ops as that of the baseline, with their number."""
    expected = _count_ops(folder, baseline)
    return {arm: expected.total() for arm in arms if _count_ops(folder, arm) == expected}


def _count_ops(folder: RunFolder, arm: str) -> Counter[str]:
    rows = rows_of_last_step(read_rows(folder.stacks(arm, 0)))
    return Counter(row.name for row in rows if row.cat == "cpu_op" and not row.name.startswith(PREFIX))


def measure_loader(request: JobRequest, job: Job, batches: JobBatches) -> None:
    """Record how fast this rank's loader delivers batches; all ranks of the job call it.

    A second iterator of the loader makes them, with workers of its own; copies to the device are the job's, and not
    timed. Raises RecordingFailed, on every rank, for a loop without a DataLoader.
    """
    world = world_on_devices(job)
    request = common_request(request, world)
    loader = batches.loader
    is_own = isinstance(loader, DataLoader)  # that of a framework has no second iterator
    _raise_first(world.gather("" if is_own else "the loop takes its batches from no DataLoader of torch"))
    assert loader is not None
    if world.size == 1 and not claims(Path(request.out)):
        return
    arm = Arm("run", "the job's data loader alone", baseline=True)
    arm = replace(arm, samples_per_step=sum(world.gather(batches.samples_per_batch)))
    plan = replace(
        plan_of_job(request, (JobArm(arm, ()),), world),
        recipe=_RECIPE,
        steps=_DEFAULT_STEPS if request.steps is None else request.steps,
        trace_steps=0,
        parameters={
            "batch_size": batches.samples_per_batch,
            **loader_settings(loader),
        },
    )
    source = _Endless(loader)
    control = LoopControl(lambda _: None, source.was_regular)
    rank = Rank(plan, world, Phases((_FETCH, _TO_DEVICE)), ProgressCounters(), control=control)
    try:
        for _ in recorded_steps(rank, plan.manifest(_RECIPE, _QUESTION)):
            with rank.phases(_FETCH):
                source.fetch()
    except Exception as error:
        mark_ended(plan.folder, "failed", f"{type(error).__name__}: {error}")
        raise
    rank.say(f"traceq: the recording is complete, after {rank.progress.num_ended:,} batches")
    _leave_in_order(world)


class _Endless:
    """Batches of a loader, which starts again at its end; that one does not count, as in a recording of the steps."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._iterator: Iterator[Any] = iter(())
        self._is_first = False

    def fetch(self) -> None:
        """Make the next batch. Raises RecordingFailed for a loader without any."""
        self._is_first = False
        try:
            next(self._iterator)
        except StopIteration:
            self._is_first = True
            self._iterator = self._loader._get_iterator()
            if next(self._iterator, None) is None:
                raise RecordingFailed("the job's DataLoader has no more batches") from None

    def was_regular(self) -> bool:
        """Return whether the last batch was not the first of an epoch, for which workers start."""
        return not self._is_first
