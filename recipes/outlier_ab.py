"""What does a per-step outlier check cost a training step, and is it free when it is switched off?

The check takes the largest absolute value of a batch's actions and of its state, joins the two, and asks `bool(...)`:
one byte from the device to the host, for which the host waits. It stands in the forward phase of a
vision-language-action training step: AdamW, clipped gradients, a learning-rate schedule, a loader with workers, and
five metrics gathered over all ranks.

Neighbours hide each other: where the trainer fetches its metrics at every step the host waits anyway, and the check
only moves that wait; where nothing else waits, the check alone keeps the host from running ahead. So each question is
asked twice, beside the metrics and in steps that leave them out (`off_alone`, `on_alone`, `deferred_alone`).

The answer is a verdict on `on` (what the check costs) and on `deferred` (whether reading the flag only now and then
avoids it), each against the `off` of its own surroundings; how far the two costs of a check lie apart, with an
interval: what neighbours hide of it, or add to it; `off_alone` against `off` (what the metrics cost), and `off` against
itself (what this machine calls noise). `absent` is traced, never timed: a step without even the call, whose ops have to
be those of `off`. `--set stall_us=2000` makes checked steps wait that long: a known truth to test the method against,
and no neighbour hides it.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import Annotated

from msgspec import Meta

from traceq.recipes.workload.parameters import TrainingParameters
from traceq.recipes.workload.phases import PHASES
from traceq.recorder import Arm, Context, Recipe, Step

__all__ = ["recipe"]

ALONE = "_alone"


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """What `--set` and `--vary` can change."""

    threshold: float = 10.0
    check_every: Annotated[int, Meta(ge=1)] = 50
    stall_us: Annotated[int, Meta(ge=0)] = 0


def build(context: Context, parameters: Parameters) -> Step:
    """One training step for all arms; they differ in the check, and those alone leave the trainer's metrics out."""
    import torch

    from traceq.recipes.workload.outlier_check import DeferredCheck, outlier_seen
    from traceq.recipes.workload.training import Training

    training = Training.build(context, parameters.size, parameters.batch_size, parameters.num_workers, parameters.seed)
    deferred = DeferredCheck(parameters.check_every, torch.zeros((), dtype=torch.bool, device=context.device))

    def step(arm: str) -> None:
        check = arm.removesuffix(ALONE)
        with context.phase("dataload_wait"):
            batch = training.next_batch()
        with context.phase("forward"):
            if check == "off":
                training.count_outlier(outlier_seen(batch.actions, batch.state, threshold=0.0))
            elif check == "on":
                training.count_outlier(outlier_seen(batch.actions, batch.state, parameters.threshold))
            elif check == "deferred":
                training.count_outlier(deferred.outlier_seen(batch.actions, batch.state, parameters.threshold))
            training.forward(batch)
            if check == "on":
                _stall(parameters.stall_us)  # here the loader's worker is done: beside it a stall is partly free
        training.update(context.phase)
        with context.phase("sync_gather"):
            if check == arm:
                training.gather()

    return step


def _stall(stall_us: int) -> None:
    """Keep the host busy for that long."""
    until = perf_counter_ns() + 1000 * stall_us
    while perf_counter_ns() < until:
        pass


recipe = Recipe(
    question="What does a per-step outlier check cost, is it in the noise, and is it free when switched off?",
    arms=(
        Arm("off", "the check is called with threshold 0 and returns before any work", baseline=True),
        Arm("on", "the check runs at every step, and the host waits for its answer"),
        Arm("deferred", "the answer stays on the device and is fetched every check_every steps"),
        Arm("off_alone", "off without the trainer's metrics, so that nothing else waits for the device"),
        Arm("on_alone", "the check at every step, and no metrics", against="off_alone", repeats="on"),
        Arm("deferred_alone", "the deferred check, and no metrics", against="off_alone", repeats="deferred"),
        Arm("absent", "the step without the call, traced as a reference", timed=False),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    varied="on",
    samples_per_rank=lambda parameters: parameters.batch_size,
)
