"""What does a job pay for its ranks: how much of their step is communication, DDP's hooks, and waiting for each other?

`one` is a rank by itself, `all` are all of them under DDP; each rank has the same batch, the same model and the same
share of the cores, so that a rank's own work is the same. The arms run apart, since they are jobs of different size.

`all` trains on as many times the samples, so the verdict is on the time of a sample: on two ranks -50 % would be ideal.
How much longer the step of a rank is, and why, `traceq diff` explains: communication that nothing hides by collective,
the reducer's hooks by their ops (`torch.distributed.ddp.reducer::...` in `bwd`). `traceq show RUN/all` parts the time
in collectives: of each rank what is transfer, and what is skew, waiting for the rank that comes last. `late_us` makes
the last rank's data that much later in every step: a known skew.
"""

from __future__ import annotations

import time
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

    late_us: Annotated[int, Meta(ge=0)] = 0


def build(context: Context, parameters: Parameters) -> Step:
    """One training step, of a rank alone or of one among several."""
    from traceq.recipes.workload.training import Training

    training = Training.build(context, parameters.size, parameters.batch_size, parameters.num_workers, parameters.seed)
    is_late = context.world_size > 1 and context.rank == context.world_size - 1

    def step(arm: str) -> None:
        with context.phase("dataload_wait"):
            batch = training.next_batch()
            if is_late:
                time.sleep(parameters.late_us / 1e6)
        with context.phase("forward"):
            training.forward(batch)
        training.finish(context.phase)

    return step


recipe = Recipe(
    question="What does a job pay for its ranks: communication, DDP's hooks, or waiting for each other?",
    arms=(
        Arm("one", "one rank by itself", baseline=True, num_ranks=1),
        Arm("all", "all ranks under DDP, each with the same batch"),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    varied="all",
    samples_per_rank=lambda parameters: parameters.batch_size,
    apart=True,
)
