"""What does a per-step outlier check cost a training step, and is it free when it is switched off?

The check computes the largest absolute value of a batch's actions and of its state, concatenates the two, and calls
`bool(...)`: a copy of one byte to the host, which blocks the host. It runs in the forward phase of a
vision-language-action training step: AdamW, gradient clipping, a learning-rate schedule, a loader with workers, and
five metrics gathered over all ranks.

Syncs hide each other: where the trainer fetches metrics at every step the host is blocked anyway, and the check only
moves that wait; without any other sync, the check alone keeps the host from running ahead. So each question is asked in
two contexts, beside the metrics and in steps without them (`off_alone`, `on_alone`, `deferred_alone`).

Result: a verdict on `on` (the cost of the check) and on `deferred` (does fetching the flag less often avoid it?), each
against the `off` of the same context; the interaction, with an interval: the difference of the two costs of a check,
hidden or added by its context; `off_alone` against `off` (the cost of the metrics); and `off` against itself (the A/A
noise floor). `absent` is traced, never timed: a step without the call, which must issue the same ops as `off`.
`--set stall_us=2000` makes steps with the check wait that long: a known truth to test the method, which no context
hides.

`attention`, `checkpointing`, `cameras` and `prompts` change the step around the check; `precision` is the dtype of what
the optimizer updates, verified and noted as `state`.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import Annotated

from msgspec import Meta

from traceq.recipes.workload.parameters import PHASES, ModelParameters
from traceq.recorder import Arm, Context, Fact, Recipe, Step

__all__ = ["recipe"]

ALONE = "_alone"


@dataclass(frozen=True, slots=True)
class Parameters(ModelParameters):
    """Parameters that `--set` and `--vary` can change."""

    threshold: float = 10.0
    check_every: Annotated[int, Meta(ge=1)] = 50
    stall_us: Annotated[int, Meta(ge=0)] = 0


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step for all arms; they differ in the check, and `*_alone` arms omit the metrics."""
    import torch

    from traceq.recipes.workload.model import set_options
    from traceq.recipes.workload.outlier_check import DeferredCheck, outlier_seen
    from traceq.recipes.workload.precision import note_state_after_step
    from traceq.recipes.workload.training import Training

    size, batch_size, precision = parameters.size, parameters.batch_size, parameters.precision
    training = Training.build(
        context,
        size,
        batch_size,
        parameters.num_workers,
        parameters.seed,
        precision=precision,
        cameras=parameters.cameras,
        prompts=parameters.prompts,
    )
    set_options(training.model, attention=parameters.attention, checkpointing=parameters.checkpointing)
    note_state_after_step(context, training.optimizer, precision)
    deferred = {
        arm: DeferredCheck(parameters.check_every, torch.zeros((), dtype=torch.bool, device=context.device))
        for arm in ("deferred", f"deferred{ALONE}")
    }

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
                training.count_outlier(deferred[arm].outlier_seen(batch.actions, batch.state, parameters.threshold))
            training.forward(batch)
            if check == "on":
                _stall(parameters.stall_us)  # the loader's worker has finished here; beside it a stall is partly hidden
        training.update(context.phase)
        with context.phase("sync_gather"):
            if check == arm:
                training.gather()

    return step


def _stall(stall_us: int) -> None:
    """Keep the host busy for `stall_us` microseconds."""
    until = perf_counter_ns() + 1000 * stall_us
    while perf_counter_ns() < until:
        pass


recipe = Recipe(
    question="What does a per-step outlier check cost, is it above the noise, and is it free when switched off?",
    arms=(
        Arm("off", "the check is called with threshold 0 and returns before any work", baseline=True),
        Arm("on", "the check runs at every step and blocks the host until its result arrives"),
        Arm("deferred", "the result stays on the device and is fetched every check_every steps"),
        Arm("off_alone", "off without the trainer's metrics, so without any other sync"),
        Arm("on_alone", "the check at every step, and no metrics", against="off_alone", repeats="on"),
        Arm("deferred_alone", "the deferred check, and no metrics", against="off_alone", repeats="deferred"),
        Arm("absent", "the step without the call, traced as a reference", timed=False),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    varied="on",
    facts=(Fact("state", "the optimizer updates"),),
    varied_apart=("precision",),
    samples_per_rank=lambda parameters: parameters.batch_size,
)
