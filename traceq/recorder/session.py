"""A loop of one's own, recorded: unprofiled steps first, then a profiled window, as a run with one arm."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from traceq.errors import TraceqError
from traceq.model import Arm
from traceq.recorder.experiment import num_steps, recorded_steps
from traceq.recorder.external_end import note_end
from traceq.recorder.process.progress_counters import Pulse
from traceq.recorder.process.run_status import mark
from traceq.recorder.process.shared_folder import check_shared
from traceq.recorder.process.world import World, running_world
from traceq.recorder.rank.rank import Rank
from traceq.recorder.spec.names import check_arm
from traceq.recorder.spec.phases import Phases
from traceq.recorder.spec.plan import Plan, PlannedArm, check_samples
from traceq.recorder.spec.prepare import DEFAULT_STEPS, fresh_folder, now, resolve_device
from traceq.recorder.stepper import FETCH, Stepper

__all__ = ["Session", "record"]

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Session:
    """Hands out batches and phases while the steps between them are recorded."""

    rank: Rank
    question: str

    @property
    def folder(self) -> Path:
        """Where the run is written."""
        return self.rank.plan.folder.path

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Everything in the block belongs to this phase of the step."""
        return self.rank.phases(name)

    def steps(self, batches: Iterable[B]) -> Iterator[B]:
        """The batches, one a step; fetching is the phase `dataload_wait`. When the recording is done they go on."""
        source = self._fetched(batches)
        for _, batch in zip(self._recorded(), source, strict=False):
            yield batch
        yield from source

    @contextmanager
    def stepper(self) -> Iterator[Stepper]:
        """For a loop that runs elsewhere: callbacks in the block say where a step ends, and which phase begins."""
        stepper = Stepper(self._recorded(), self.rank.phases)
        try:
            yield stepper
        finally:
            stepper.close()

    def _recorded(self) -> Iterator[str]:
        return recorded_steps(self.rank, self.rank.plan.manifest("loop", self.question, self.rank.phases.names))

    def _fetched(self, batches: Iterable[B]) -> Iterator[B]:
        iterator = iter(batches)
        while True:
            try:
                with self.phase(FETCH):
                    batch = next(iterator)
            except StopIteration:
                return
            yield batch


@contextmanager
def record(
    out: str | Path | None = None,
    *,
    arm: str = "run",
    steps: int | None = None,
    trace_steps: int = 3,
    phases: Iterable[str] = (),
    device: str = "auto",
    question: str = "",
    samples_per_rank: int | None = None,
) -> Iterator[Session]:
    """Record the loop in the block: `for batch in rec.steps(loader)`, with `rec.phase(name)` inside.

    Works under plain python, torchrun and accelerate launch; every rank has to run it, in step. `steps` unprofiled
    steps are timed (rounded up to fours, on CUDA to 28), then one step with stacks and `trace_steps`
    are profiled. A loop that ends before that leaves a run marked failed, and a line on stderr, which say how far it
    came. While steps are timed Python's collector is off, and runs between groups. Ranks without a process group are
    given one for the block. `samples_per_rank`, what a step of this rank trains on, lets `traceq diff` compare loops
    of different batch or world size by the time a sample takes.
    """
    check_arm(arm)
    if samples_per_rank is not None:
        check_samples(samples_per_rank, "record(samples_per_rank=)")
    with running_world(resolve_device(device)) as world:
        samples = sum(world.gather(samples_per_rank or 0))
        variant = Arm(arm, "the loop as it is", baseline=True, samples_per_step=samples)
        plan = _plan(world, out, variant, DEFAULT_STEPS[world.device.type] if steps is None else steps, trace_steps)
        names = tuple(dict.fromkeys([FETCH, *phases])) if phases else ()
        rank = Rank(plan, world, Phases(names), Pulse("", world.rank))
        rank.pulse.expect(num_steps(plan))
        try:
            yield Session(rank, question)
        except BaseException as fault:
            note_end(plan, world, fault)
            raise
        if not rank.pulse.is_over:
            _tell_of_early_end(rank)


def _tell_of_early_end(rank: Rank) -> None:
    """In the manifest and on stderr, by rank 0."""
    text = f"the loop ended after {rank.pulse.text}"
    rank.say(
        f"traceq: {rank.plan.out}: the recording is incomplete: {text}; "
        "give it more batches, or fewer steps: traceq.record(..., steps=)"
    )
    mark(rank.plan.folder, "failed", text)


def _plan(world: World, out: str | Path | None, arm: Arm, steps: int, trace_steps: int) -> Plan:
    """The same plan on every rank; rank 0 makes the folder."""
    path = _shared_folder(world, Path(out) if out else None, arm.name)
    seed = world.share(secrets.randbelow(2**31))
    return Plan(
        recipe="",
        run_id=f"{Path(path).name}-{seed:08x}",
        out=path,
        device=world.device.type,
        num_ranks=world.size,
        steps=steps,
        trace_steps=trace_steps,
        seed=seed,
        parameters={},
        arms=(PlannedArm(arm, arm.name, {}),),
        reseeds=False,
        started=world.share(now()),
    )


def _shared_folder(world: World, out: Path | None, arm: str) -> str:
    """The folder that rank 0 made, or its fault, on every rank: none is left waiting."""
    path = fault = ""
    if world.rank == 0:
        try:
            path = str(fresh_folder(out, arm, remedy="choose another folder for traceq.record(...)"))
        except TraceqError as refused:
            fault = str(refused)
    path, fault = world.share((path, fault))
    if fault:
        raise TraceqError(fault)
    check_shared(Path(path), world)
    return path
