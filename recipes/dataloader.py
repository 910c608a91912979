"""Can the input pipeline keep up with training?

This is the loader of the other recipes alone: no model, no collective, nothing between two batches but their copies to
the device. After 20 warm-up batches, 300 are fetched as fast as the loader delivers them (on CUDA 308, with the copies
timed by the device's clock). Batches that may have been prepared while the recording paused, up to `num_workers` x
`prefetch_factor`, are excluded.

Result: a table by rank with mean, median and 95th percentile of fetch and copy, and batches per second; and the
samples per second of the whole job, which training cannot exceed. Fetch times often fall into two groups: with several
workers batches arrive in bursts, so most are ready and some are waited for; the result states how many and how long.

Whether that suffices depends on the step: record `step_profile` with the same `size`, `batch_size`, `num_workers` and
`prefetch_factor`; `traceq diff LOADER_RUN PROFILE_RUN` then says whether steps wait for data, and how long. Beside
training, workers may have fewer cores than here. `load_us` slows the loader by that much per sample: a known truth.
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
    """Parameters that `--set` and `--vary` can change."""

    prefetch_factor: Annotated[int, Meta(ge=1)] = 2
    load_us: Annotated[int, Meta(ge=0)] = 0


def build(context: Context, parameters: Parameters) -> Step:
    """Return a step that fetches the next batch and copies it to the device."""
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
