"""What do five logged metrics cost a training step, and how much is saved by fetching them less often?

Trainers write `gather(loss).mean().item()` for each metric: five times a step, a collective that waits for the slowest
rank and a sync that blocks the host. Two remedies: do the same only every K-th step, or add the values up on the device
and fetch all sums at once every K-th step. The second also averages over all steps instead of sampling one. The last
arm does not send the learning rate to the device, as the host knows it.

Result: a verdict on each remedy against `every`, with the syncs and collectives that were removed, and their lines. In
K steps `every` has 5 K syncs and 5 K gathers, `every_kth` 5 and 5, `summed` 1 and 1. `--vary every=5,50` shows how much
K matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from traceq.recipes.workload.parameters import PHASES, TrainingParameters
from traceq.recorder import Arm, Context, Recipe, Step

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """Parameters that `--set` and `--vary` can change."""

    every: Annotated[int, Meta(ge=1)] = 10


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step for all arms; they differ in when and how metrics are fetched."""
    from traceq.recipes.workload.metrics import MetricSums, gather_means
    from traceq.recipes.workload.training import Training

    training = Training.build(context, parameters.size, parameters.batch_size, parameters.num_workers, parameters.seed)
    sums = MetricSums()
    num_steps = 0

    def every_kth() -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps % parameters.every == 0:
            training.metrics |= gather_means(training.accelerator, training.measured())

    def summed() -> None:
        sums.add(training.measured(on_host=False))
        if sums.num_steps == parameters.every:
            training.metrics |= sums.fetch(training.accelerator)

    fetch = {"every": training.gather, "every_kth": every_kth, "summed": summed}

    def step(arm: str) -> None:
        training.begin(context.phase)
        training.update(context.phase)
        with context.phase("sync_gather"):
            fetch[arm]()

    return step


recipe = Recipe(
    question="What do gathered metrics cost if fetched every step, every K steps, or summed on the device?",
    arms=(
        Arm("every", "five metrics gathered and fetched one by one at every step", baseline=True),
        Arm("every_kth", "the same every K-th step only"),
        Arm("summed", "summed on the device, all fetched at once every K-th step"),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    varied="summed",
    samples_per_rank=lambda parameters: parameters.batch_size,
)
