"""What do five metrics in the log cost a training step, and how much of it comes back if they are fetched less often?

Trainers write `gather(loss).mean().item()` once a metric: a collective that waits for the slowest rank, and a host that
waits for the device, five times a step. Two remedies: do the same every K-th step only, or add the values up on the
device, and fetch all sums at once every K-th step. The second also averages over all steps instead of sampling one.
What only the host knows, the learning rate, is not sent to the device by the last arm.

The answer is a verdict on each remedy against `every`, with the syncs and the collectives that went away and their
lines. In K steps `every` waits 5 K times and gathers 5 K times, `every_kth` 5 and 5, `summed` 1 and 1.
`--vary every=5,50` asks how much K matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from traceq.recipes.workload.parameters import TrainingParameters
from traceq.recipes.workload.phases import PHASES
from traceq.recorder import Arm, Context, Recipe, Step

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """What `--set` and `--vary` can change."""

    every: Annotated[int, Meta(ge=1)] = 10


def build(context: Context, parameters: Parameters) -> Step:
    """One training step for all arms; they differ in when and how its metrics are fetched."""
    from traceq.recipes.workload.metrics import MetricSums, gathered
    from traceq.recipes.workload.training import Training

    training = Training.build(context, parameters.size, parameters.batch_size, parameters.num_workers, parameters.seed)
    sums = MetricSums()
    num_steps = 0

    def every_kth() -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps % parameters.every == 0:
            training.metrics |= gathered(training.accelerator, training.measured())

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
    question="What do gathered metrics cost when they are fetched every step, every K steps, or summed on the device?",
    arms=(
        Arm("every", "five metrics gathered and fetched, one by one, at every step", baseline=True),
        Arm("every_kth", "the same every K-th step, nothing in between"),
        Arm("summed", "added up on the device, all fetched at once every K-th step"),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    varied="summed",
    samples_per_rank=lambda parameters: parameters.batch_size,
)
