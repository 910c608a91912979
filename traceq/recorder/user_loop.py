"""Recording of a user's loop: unprofiled steps first, all arms in turns, then a profiled window of each."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from traceq.errors import PeerLeft, TraceqError, UsageFault
from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.model import OTHER_STEPS, Arm
from traceq.recorder.failures.external_launcher import note_end
from traceq.recorder.failures.hang_watch import watched_loop
from traceq.recorder.failures.rank_errors import error_text, note_arm, reserve_descriptors
from traceq.recorder.failures.run_status import LOOP_ENDED, mark_ended
from traceq.recorder.process.environment_variables import KINETO_IS_QUIET
from traceq.recorder.process.world import World, check_shared, host_note, other_accelerator, running_world
from traceq.recorder.rank.rank_state import LoopControl, Rank, loader_settings
from traceq.recorder.rank.wall_account import WallAccount
from traceq.recorder.rank_recording import num_steps, recorded_steps
from traceq.recorder.spec.parameters import check_arm
from traceq.recorder.spec.phases import Phases
from traceq.recorder.spec.plan import DEFAULT_HANG_S, Plan, PlannedArm, check_samples
from traceq.recorder.spec.prepare import check_seconds, create_run_folder, default_steps, resolve_device, utc_now
from traceq.recorder.toggles.attribute import Slot, slot_of
from traceq.recorder.tracing.line_samples import forked_workers


class Stepper:
    """Callbacks that end steps and begin phases, one after the other.

    The first step begins with the stepper. A step begins in the phase `dataload_wait`, until the loop sets another.
    When the recording is complete, the callbacks have no further effect.
    """

    __slots__ = ("_open", "_phases", "_steps")

    def __init__(self, steps: Generator[str, None, None], phases: Phases) -> None:
        self._steps = steps
        self._phases = phases
        self._open = ExitStack()
        self.end_step()

    def set_phase(self, phase: str) -> None:
        """End the current phase and begin this one."""
        self._open.close()
        self._open.enter_context(self._phases(phase))

    def end_step(self) -> None:
        """End the current step and begin the next one."""
        self._open.close()
        next(self._steps, None)
        self.set_phase(DATALOAD_WAIT)

    def close(self) -> None:
        """End the recording: the step that runs has no end and does not count."""
        self._open.close()
        self._steps.close()


B = TypeVar("B")
_MEANING = {False: "the loop as it is", True: "as the loop defines it"}


class StepSource:
    """What gives a loop its batches and phases."""

    __slots__ = ()
    rank: Rank

    def recorded_steps(self) -> Generator[str, None, None]:
        """Return the steps, of which each yields its arm before it begins."""
        raise NotImplementedError

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.rank.plan.folder.path

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager: everything in its block belongs to this phase of the step."""
        return self.rank.phases(name)

    def steps(self, batches: Iterable[B]) -> Iterator[B]:
        """Yield all batches, one per step; fetching is the phase `dataload_wait`.

        Batches continue, unrecorded, after the recording is complete.
        """
        if isinstance(batches, DataLoader):
            self.rank.facts.update(loader_settings(batches))
        source = self._fetch_batches(batches)
        with closing(self.recorded_steps()) as recorded:
            for _, batch in zip(recorded, source, strict=False):
                yield batch
        yield from source

    @contextmanager
    def stepper(self) -> Iterator[Stepper]:
        """Yield callbacks for a loop that runs elsewhere: they say where a step ends and which phase begins."""
        stepper = Stepper(self.recorded_steps(), self.rank.phases)
        try:
            yield stepper
        finally:
            stepper.close()

    def _fetch_batches(self, batches: Iterable[B]) -> Iterator[B]:
        iterator = iter(batches)
        while True:
            try:
                with self.phase(DATALOAD_WAIT):
                    batch = next(iterator)
            except StopIteration:
                return
            yield batch


@dataclass(frozen=True, slots=True)
class Session(StepSource):
    """Source of batches and phases for a loop whose steps are recorded.

    `open_steps` ends what is being recorded, at the latest with the block of `record`: a loop may be left anywhere, and
    its iterator be kept. `watching` ends once all is recorded.
    """

    rank: Rank
    question: str
    arms: LoopArms
    open_steps: ExitStack
    watching: ExitStack

    @property
    def arm(self) -> str:
        """Arm of the step that runs; it changes only where a step begins. The first one once all is recorded."""
        return self.arms.current

    def toggle(self, owner: Any, name: str, **values: Any) -> None:
        """Set an attribute (or an item) of an object to the value of the arm of each step: `off=0, on=10`.

        It has its own value again once all is recorded. UsageFault for a name that the object does not have, or a
        missing arm.
        """
        self.arms.add_toggle(owner, name, values)

    def exclude_step(self) -> None:
        """Let the step that runs not count: it evaluates, or saves a checkpoint, which others do not."""
        self.arms.exclude_step()

    def recorded_steps(self) -> Generator[str, None, None]:
        """Return the steps until the recording is complete."""
        return self.open_steps.enter_context(closing(self._until_complete()))

    def _until_complete(self) -> Generator[str, None, None]:
        manifest = self.rank.plan.manifest("loop", self.question, self.rank.phases.names)
        try:
            yield from recorded_steps(self.rank, manifest)
        except (OSError, TraceqError) as error:
            _give_up(self.rank, error)
        else:
            _say_complete(self.rank)
        finally:
            self.arms.restore()
            self.watching.close()


@contextmanager
def record(
    out: str | Path | None = None,
    *,
    arm: str = "run",
    arms: Sequence[str] = (),
    steps: int | None = None,
    trace_steps: int = 3,
    phases: Iterable[str] = (),
    device: str = "auto",
    question: str = "",
    samples_per_rank: int | None = None,
    hang_after: float = DEFAULT_HANG_S,
    overwrite: bool = False,
) -> Iterator[Session]:
    """Record the loop in the block: `for batch in rec.steps(loader)`, with `rec.phase(name)` inside.

    With `arms`, at least two, of which the first is the baseline, steps run the arms in turns: read the arm of a step
    in `rec.arm`, or let `rec.toggle(...)` change something; `traceq diff` has the verdict. Without them the run has one
    arm, `arm`.

    Works under plain python, torchrun and accelerate launch; every rank has to run it, in step. `steps` unprofiled
    steps of an arm are timed (rounded up to a multiple of 4, on CUDA of 28; with several arms of 16 and 128), then one
    step with stacks and `trace_steps` steps of each are profiled. If the loop ends earlier, the run is marked failed,
    and its manifest and a line on stderr say after how many steps; likewise why, if it cannot be recorded any more, as
    on a full disk: the loop goes on. Python's garbage collector stays as it is. `device` is auto, cpu, cuda (the GPU on
    which the process holds memory, else the current one) or cuda:N. Ranks without a process group get one for the
    duration of the block. `samples_per_rank`, the samples of a step of this rank, lets `traceq diff` compare loops of
    different batch or world size by the time per sample. If `out` is a run already, the new one is in a folder beside
    it, `out-2`, or with `overwrite` in its place. Rank 0 says on stderr which folder it is, how many steps the
    recording takes, and what to type once it is complete. After `hang_after` seconds without a step or a phase on any
    rank (0: never) stderr says where each one stands.
    """
    names = tuple(arms) or (arm,)
    check_arms(names)
    if samples_per_rank is not None:
        check_samples(samples_per_rank, "record(samples_per_rank=)")
    check_seconds("hang_after", hang_after)
    with running_world(resolve_device(device)) as world, ExitStack() as watching:
        samples = sum(world.gather(samples_per_rank or 0))
        variants = tuple(
            Arm(name, _MEANING[len(names) > 1], baseline=name == names[0], samples_per_step=samples) for name in names
        )
        path = shared_folder(world, Path(out) if out else None, names[0], overwrite=overwrite, function="record")
        num = default_steps(world.device.type, world.size, len(names)) if steps is None else steps
        plan = _plan(world, path, variants, num, trace_steps)
        progress = watching.enter_context(watched_loop(replace(plan, hang_s=hang_after), world))
        declared = tuple(dict.fromkeys([DATALOAD_WAIT, *phases])) if phases else ()
        loop_arms = LoopArms(names, names[0])
        account = WallAccount()

        def was_regular() -> bool:
            is_regular = loop_arms.was_regular()
            account.classify(None if is_regular else OTHER_STEPS)
            return is_regular

        control = LoopControl(loop_arms.set, was_regular)
        workers = watching.enter_context(forked_workers())
        counted = Phases(declared, progress.count_phase)
        rank = Rank(plan, world, counted, progress, control=control, workers=workers, account=account)
        rank = replace(rank, samples_per_step=lambda: float(samples_per_rank or 0))
        rank.progress.plan_steps(num_steps(plan))
        if world.device.type == "cpu" and (kind := other_accelerator()):
            rank.say(f"traceq: note: {host_note(kind)}")
        rank.say(f"traceq: recording {num_steps(plan)} steps of this loop into {plan.out}; then it goes on unrecorded")
        reserve_descriptors()
        os.environ.setdefault("KINETO_LOG_LEVEL", KINETO_IS_QUIET)  # read by the first profiler of a process
        try:
            with ExitStack() as open_steps:
                yield Session(rank, question, loop_arms, open_steps, watching)
        except BaseException as error:
            if len(names) > 1 and isinstance(error, Exception):
                note_arm(error, loop_arms.current)
            note_end(plan, world, error)
            raise
        finally:
            loop_arms.restore()
        if not rank.progress.is_done:
            _report_early_end(rank)


def _say_complete(rank: Rank) -> None:
    """Print on stderr that the recording is complete, and the commands that read it."""
    plan = rank.plan
    with suppress(OSError):  # stderr may be on a disk that is full by now
        rank.say(f"traceq: the recording is complete, after {rank.progress.num_ended:,} steps")
        if len(plan.arms) > 1:
            rank.say(shlex.join(["traceq", "diff", plan.out]))
        if plan.trace_steps:
            rank.say(shlex.join(["traceq", "show", str(plan.folder.path / plan.arms[-1].arm.name)]))


def _give_up(rank: Rank, error: OSError | TraceqError) -> None:
    """Let the loop go on unrecorded on all ranks; the manifest and a line on stderr say why. Raises nothing."""
    rank.progress.plan_steps(0)
    text = str(error) if isinstance(error, TraceqError) else error_text(error)
    if not isinstance(error, PeerLeft):
        with suppress(Exception):  # a peer that is lost is the loop's to report
            rank.world.leave(text)
        text = f"rank {rank.world.rank}: {text}" if rank.world.size > 1 else text
    if rank.world.rank == 0:
        mark_ended(rank.plan.folder, "failed", text)
    with suppress(OSError):  # stderr may be on the same disk
        rank.say(f"traceq: the recording ended, and the loop goes on: {text}")


def _report_early_end(rank: Rank) -> None:
    """Write into the manifest, and on rank 0 to stderr, that the loop ended before the recording was complete."""
    text = f"{LOOP_ENDED} {rank.progress.text}"
    rank.say(
        f"traceq: {rank.plan.out}: the recording is incomplete: {text}; "
        "provide more batches, or record fewer steps: traceq.record(..., steps=)"
    )
    mark_ended(rank.plan.folder, "failed", text)


def _plan(world: World, path: str, arms: Sequence[Arm], steps: int, trace_steps: int) -> Plan:
    """Return the same plan on every rank."""
    seed = world.share(secrets.randbelow(2**31))
    return Plan(
        run_id=f"{Path(path).name}-{seed:08x}",
        out=path,
        device=world.device.type,
        num_ranks=world.size,
        steps=steps,
        trace_steps=trace_steps,
        seed=seed,
        arms=tuple(map(PlannedArm, arms)),
        reseeds=False,
        started=world.share(utc_now()),
    )


def shared_folder(world: World, out: Path | None, arm: str, *, overwrite: bool, function: str) -> str:
    """Return the folder that rank 0 created, or raise its error, on every rank, so that no rank is left waiting."""
    path = message = ""
    if world.rank == 0:
        try:
            remedy = f"choose another folder for traceq.{function}(...)"
            path = str(create_run_folder(out, arm, overwrite=overwrite, remedy=remedy).absolute())  # the loop may chdir
        except TraceqError as error:
            message = str(error)
    path, message = world.share((path, message))
    if message:
        raise TraceqError(message)
    check_shared(Path(path), world)
    return path


@dataclass(slots=True)
class LoopArms:
    """Names of the arms, of which the first is the baseline; `current` is the arm of the step that runs."""

    names: tuple[str, ...]
    current: str
    _is_regular: bool = True
    _toggles: list[tuple[Slot, Any, Mapping[str, Any]]] = field(default_factory=list)

    def add_toggle(self, owner: Any, name: str, values: Mapping[str, Any]) -> None:
        """Let the arms change an attribute or item of an object.

        UsageFault if it does not exist, cannot be changed, or lacks a value for an arm.
        """
        slot = slot_of(owner, name)
        if slot is None:
            raise UsageFault(f"toggle: {type(owner).__name__} has no {name!r}")
        if set(values) != set(self.names):
            raise UsageFault(f"toggle {name!r}: found values for {', '.join(values)}; expected {', '.join(self.names)}")
        before = slot.get()
        try:
            slot.write(before)()
        except (AttributeError, TypeError) as error:
            raise UsageFault(f"toggle {name!r}: cannot be changed: {error}") from error
        self._toggles.append((slot, before, values))
        slot.write(values[self.current])()

    def set(self, arm: str) -> None:
        """Let the next steps run this arm."""
        self.current = arm
        for slot, _, values in self._toggles:
            slot.write(values[arm])()

    def exclude_step(self) -> None:
        """Let the step that runs not count."""
        self._is_regular = False

    def was_regular(self) -> bool:
        """Return whether the step that just ended counts; call it once per step."""
        was_regular, self._is_regular = self._is_regular, True
        return was_regular

    def restore(self) -> None:
        """Restore what the toggles changed; the loop goes on with the baseline."""
        self.current = self.names[0]
        for slot, before, _ in reversed(self._toggles):
            slot.write(before)()
        self._toggles.clear()


def check_arms(names: Sequence[str]) -> None:
    """Raise UsageFault for names of arms that are invalid or not unique."""
    for name in names:
        check_arm(name)
    if len(set(names)) < len(names):
        raise UsageFault(f"arms: found {', '.join(names)}; expected different names")
