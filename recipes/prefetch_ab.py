"""How should a batch get to the device: through Python values, from pinned memory, or a step ahead of its use?

`naive` is what grows when data comes as rows of Python or Arrow values: each row boxed into lists and back, copies from
pageable memory that the host waits for, and an `.item()` on the batch to see whether it is sound. `pinned` takes the
loader's tensors as they are and copies without waiting. `prefetch` asks for the next batch once the forward pass is
under way, and copies it on a side stream while the device computes.

The answer is a verdict on `pinned` and on `prefetch` against `naive`, with the syncs and the host's work that went away
from `dataload_wait`. On CUDA the copies of `prefetch` overlap with kernels; on a CPU there are none, and what is left
of it is that the loader is asked in the phase `dataload_ahead`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from traceq.recorder import Arm, Context, Recipe, Step

from .phases import PHASES

__all__ = ["recipe"]

TOO_LARGE = 1e3


@dataclass(frozen=True, slots=True)
class Parameters:
    """What `--set` and `--vary` can change."""

    size: Literal["tiny", "small", "base", "3b"] = "tiny"
    batch_size: Annotated[int, Meta(ge=1)] = 8
    num_workers: Annotated[int, Meta(ge=0)] = 1
    seed: Annotated[int, Meta(ge=0)] = 0


def build(context: Context, parameters: Parameters) -> Step:
    """One training step for all arms; they differ in how its batch is delivered."""
    from .delivery import Prefetcher, boxed
    from .episodes import Sample
    from .training import Training

    training = Training.build(context, parameters.size, parameters.batch_size, parameters.num_workers, parameters.seed)
    prefetcher = Prefetcher(training.batches, context.device)

    def delivered(arm: str) -> Sample:
        if arm == "pinned":
            return training.next_batch()
        if arm == "prefetch":
            return prefetcher.take()
        batch = boxed(next(training.batches), context.device)
        training.count_outlier(batch.state.abs().max().item() > TOO_LARGE)
        return batch

    def step(arm: str) -> None:
        with context.phase("dataload_wait"):
            training.batch = delivered(arm)
        with context.phase("forward"):
            training.forward(training.batch)
        with context.phase("dataload_ahead"):
            if arm == "prefetch":
                prefetcher.fetch()
        training.finish(context.phase)

    return step


recipe = Recipe(
    question="What does it gain to deliver batches from pinned memory, or a step ahead, instead of row by row?",
    arms=(
        Arm("naive", "rows boxed into Python values, pageable copies, an .item() on each batch", baseline=True),
        Arm("pinned", "the loader's tensors, copied without waiting"),
        Arm("prefetch", "the same one step ahead, on a stream of its own"),
    ),
    phases=(*PHASES[:2], "dataload_ahead", *PHASES[2:]),
    parameters=Parameters(),
    build=build,
    varied="pinned",
    samples_per_rank=lambda parameters: parameters.batch_size,
)
