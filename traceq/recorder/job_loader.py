"""The data loader of a job, alone: the job's own batches without its model, one after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from traceq.errors import RecordingFailed
from traceq.model import Arm
from traceq.recorder.failures.run_status import mark_ended
from traceq.recorder.job_rank import claims, common_request, leave_in_order, plan_of, raise_first
from traceq.recorder.jobs.job_batches import JobBatches
from traceq.recorder.jobs.job_device import world_on_devices
from traceq.recorder.jobs.job_request import JobArm, JobRequest
from traceq.recorder.process.progress_counters import ProgressCounters
from traceq.recorder.rank.loader_workers import loader_settings
from traceq.recorder.rank.loop_control import LoopControl
from traceq.recorder.rank.rank_state import Rank
from traceq.recorder.rank_recording import recorded_steps
from traceq.recorder.spec.phases import Phases
from traceq.recorder.toggles.toggle import Job

__all__ = ["RECIPE", "measure_loader"]

RECIPE = "dataloader"
"""Name of the recipe whose results these are; its loader is another one."""

_QUESTION = "Can the job's input pipeline keep up with its training?"
_FETCH, _TO_DEVICE = "fetch", "h2d"
_DEFAULT_STEPS = 300


def measure_loader(request: JobRequest, job: Job, batches: JobBatches) -> None:
    """Record how fast this rank's loader delivers batches; all ranks of the job call it.

    A second iterator of the loader makes them, with workers of its own; copies to the device are the job's, and not
    timed. Raises RecordingFailed, on every rank, for a loop without a DataLoader.
    """
    world = world_on_devices(job)
    request = common_request(request, world)
    loader = batches.loader
    is_own = isinstance(loader, DataLoader)  # that of a framework has no second iterator
    raise_first(world.gather("" if is_own else "the loop takes its batches from no DataLoader of torch"))
    assert loader is not None
    if world.size == 1 and not claims(Path(request.out)):
        return
    arm = Arm("run", "the job's data loader alone", baseline=True)
    arm = replace(arm, samples_per_step=sum(world.gather(batches.samples_per_batch)))
    plan = replace(
        plan_of(request, (JobArm(arm, ()),), world),
        recipe=RECIPE,
        steps=_DEFAULT_STEPS if request.steps is None else request.steps,
        trace_steps=0,
        parameters={
            "batch_size": batches.samples_per_batch,
            **loader_settings(loader),
        },
    )
    source = _Endless(loader)
    control = LoopControl(lambda _: None, source.was_regular)
    rank = Rank(plan, world, Phases((_FETCH, _TO_DEVICE)), ProgressCounters("", world.rank), control=control)
    try:
        for _ in recorded_steps(rank, plan.manifest(RECIPE, _QUESTION)):
            with rank.phases(_FETCH):
                source.fetch()
    except Exception as error:
        mark_ended(plan.folder, "failed", f"{type(error).__name__}: {error}")
        raise
    rank.say(f"traceq: the recording is complete, after {rank.progress.num_ended:,} batches")
    leave_in_order(world)


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
