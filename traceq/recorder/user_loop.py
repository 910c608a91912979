"""Recording of a user's loop: unprofiled steps first, then a profiled window, as a run with one arm."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from traceq.errors import TraceqError
from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.model import Arm
from traceq.recorder.failures.external_launcher import note_end
from traceq.recorder.failures.run_status import mark_ended
from traceq.recorder.process.check_shared_file_system import check_shared
from traceq.recorder.process.progress_counters import ProgressCounters
from traceq.recorder.process.world import World, running_world
from traceq.recorder.rank.rank_state import Rank
from traceq.recorder.rank_recording import num_steps, recorded_steps
from traceq.recorder.spec.names import check_arm
from traceq.recorder.spec.phases import Phases
from traceq.recorder.spec.plan import Plan, PlannedArm, check_samples
from traceq.recorder.spec.prepare import DEFAULT_STEPS, create_run_folder, resolve_device, utc_now
from traceq.recorder.trainer_callbacks import Stepper

__all__ = ["Session", "record"]

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Session:
    """Source of batches and phases for a loop whose steps are recorded."""

    rank: Rank
    question: str

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
        source = self._fetch_batches(batches)
        for _, batch in zip(self._recorded_steps(), source, strict=False):
            yield batch
        yield from source

    @contextmanager
    def stepper(self) -> Iterator[Stepper]:
        """Yield callbacks for a loop that runs elsewhere: they say where a step ends and which phase begins."""
        stepper = Stepper(self._recorded_steps(), self.rank.phases)
        try:
            yield stepper
        finally:
            stepper.close()

    def _recorded_steps(self) -> Iterator[str]:
        return recorded_steps(self.rank, self.rank.plan.manifest("loop", self.question, self.rank.phases.names))

    def _fetch_batches(self, batches: Iterable[B]) -> Iterator[B]:
        iterator = iter(batches)
        while True:
            try:
                with self.phase(DATALOAD_WAIT):
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
    steps are timed (rounded up to a multiple of 4, on CUDA of 28), then one step with stacks and `trace_steps` steps
    are profiled. If the loop ends earlier, the run is marked failed, and its manifest and a line on stderr say after
    how many steps. GC is disabled during timed steps and runs between blocks of them. Ranks without a process group
    get one for the duration of the block. `samples_per_rank`, the samples of a step of this rank, lets `traceq diff`
    compare loops of different batch or world size by the time per sample.
    """
    check_arm(arm)
    if samples_per_rank is not None:
        check_samples(samples_per_rank, "record(samples_per_rank=)")
    with running_world(resolve_device(device)) as world:
        samples = sum(world.gather(samples_per_rank or 0))
        variant = Arm(arm, "the loop as it is", baseline=True, samples_per_step=samples)
        plan = _plan(world, out, variant, DEFAULT_STEPS[world.device.type] if steps is None else steps, trace_steps)
        names = tuple(dict.fromkeys([DATALOAD_WAIT, *phases])) if phases else ()
        rank = Rank(plan, world, Phases(names), ProgressCounters("", world.rank))
        rank.progress.plan_steps(num_steps(plan))
        try:
            yield Session(rank, question)
        except BaseException as error:
            note_end(plan, world, error)
            raise
        if not rank.progress.is_done:
            _report_early_end(rank)


def _report_early_end(rank: Rank) -> None:
    """Write into the manifest, and on rank 0 to stderr, that the loop ended before the recording was complete."""
    text = f"the loop ended after {rank.progress.text}"
    rank.say(
        f"traceq: {rank.plan.out}: the recording is incomplete: {text}; "
        "provide more batches, or record fewer steps: traceq.record(..., steps=)"
    )
    mark_ended(rank.plan.folder, "failed", text)


def _plan(world: World, out: str | Path | None, arm: Arm, steps: int, trace_steps: int) -> Plan:
    """Return the same plan on every rank; rank 0 creates the folder."""
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
        started=world.share(utc_now()),
    )


def _shared_folder(world: World, out: Path | None, arm: str) -> str:
    """Return the folder that rank 0 created, or raise its error, on every rank, so that no rank is left waiting."""
    path = message = ""
    if world.rank == 0:
        try:
            path = str(create_run_folder(out, arm, remedy="choose another folder for traceq.record(...)"))
        except TraceqError as error:
            message = str(error)
    path, message = world.share((path, message))
    if message:
        raise TraceqError(message)
    check_shared(Path(path), world)
    return path
