"""What does a per-step outlier check cost a training step, and is it free when it is switched off?

The check takes the largest absolute value of a batch's actions and of its state, joins the two, and asks `bool(...)`:
one byte from the device to the host, for which the host waits. It stands in the forward phase of a
vision-language-action training step: AdamW, clipped gradients, a learning-rate schedule, a loader with workers, and
five metrics gathered over all ranks.

The answer is three verdicts: `on` against `off` (what the check costs), `deferred` against `off` (whether reading the
flag only now and then avoids it), and `off` against itself (what this machine calls noise). `absent` is traced, never
timed: a step without even the call, whose ops have to be those of `off`.
`--set stall_us=2000` makes `on` wait that long: a known truth to test the method against.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import Annotated, Literal

from msgspec import Meta

from traceq.recorder import Arm, Context, Recipe, Step

from .phases import PHASES

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters:
    """What `--set` and `--vary` can change."""

    size: Literal["tiny", "small", "base", "3b"] = "tiny"
    batch_size: Annotated[int, Meta(ge=1)] = 8
    threshold: float = 10.0
    check_every: Annotated[int, Meta(ge=1)] = 50
    num_workers: Annotated[int, Meta(ge=0)] = 1
    stall_us: Annotated[int, Meta(ge=0)] = 0
    seed: Annotated[int, Meta(ge=0)] = 0


def build(context: Context, parameters: Parameters) -> Step:
    """One training step for all arms; they differ in the check and in nothing else."""
    import torch

    from .outliers import DeferredCheck, outlier_seen
    from .training import Training

    training = Training.build(context, parameters.size, parameters.batch_size, parameters.num_workers, parameters.seed)
    deferred = DeferredCheck(parameters.check_every, torch.zeros((), dtype=torch.bool, device=context.device))

    def step(arm: str) -> None:
        with context.phase("dataload_wait"):
            batch = training.next_batch()
        with context.phase("forward"):
            if arm == "off":
                training.count_outlier(outlier_seen(batch.actions, batch.state, threshold=0.0))
            elif arm == "on":
                training.count_outlier(outlier_seen(batch.actions, batch.state, parameters.threshold))
            elif arm == "deferred":
                training.count_outlier(deferred.outlier_seen(batch.actions, batch.state, parameters.threshold))
            training.forward(batch)
            if arm == "on":
                _stall(parameters.stall_us)  # here the loader's worker is done: beside it a stall is partly free
        training.finish(context.phase)

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
        Arm("absent", "the step without the call, traced as a reference", timed=False),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    varied="on",
    samples_per_rank=lambda parameters: parameters.batch_size,
)
