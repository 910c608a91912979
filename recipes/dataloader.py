"""Can the input pipeline keep up with training?

The loader of the other recipes alone: no model, no collective, nothing between two batches but their copies to the
device. After 20 batches to warm up, 300 are fetched as fast as the loader makes them (on CUDA 308, the copies timed by
the device's clock). Those that can have been made while the recording paused, `num_workers` x `prefetch_factor` of
them, do not count.

The answer is a table by rank, mean, median and 95th percentile of the fetch and of the copy and the batches a second;
and the samples a second of which the job cannot train on more. Fetches are often of two kinds: with several workers
batches come in bursts, so most lie ready and some are waited for; the answer says how many and how long.

Whether that is enough depends on the step: record `step_profile` with the same `size`, `batch_size`, `num_workers` and
`prefetch_factor`, and `traceq diff LOADER_RUN PROFILE_RUN` says whether steps are starved, and of how much. Beside
training, workers may have fewer cores than here. `load_us` makes each sample take so much longer: a known truth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from traceq.recipes.workload.parameters import TrainingParameters
from traceq.recorder import Context, Recipe, Step

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """What `--set` and `--vary` can change."""

    prefetch_factor: Annotated[int, Meta(ge=1)] = 2
    load_us: Annotated[int, Meta(ge=0)] = 0


def build(context: Context, parameters: Parameters) -> Step:
    """The next batch, on its way to the device."""
    from traceq.recipes.workload.model import SIZES

    episodes = replace(SIZES[parameters.size].episodes(parameters.seed, context.rank), load_us=parameters.load_us)
    batches = context.batches(episodes, parameters.batch_size, parameters.num_workers, parameters.prefetch_factor)

    def step(arm: str) -> None:
        with context.phase("fetch"):
            batch = next(batches)
        with context.phase("h2d"):
            batch.to(context.device)

    return step


recipe = Recipe(
    question="Can the input pipeline keep up with training?",
    phases=("fetch", "h2d"),
    parameters=Parameters(),
    build=build,
    samples_per_rank=lambda parameters: parameters.batch_size,
    steps=300,
)
