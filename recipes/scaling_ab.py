"""What does scaling out cost: how much of a step is communication, DDP's hooks, or waiting for other ranks?

`one` is a single rank, `all` are all ranks under DDP. Each rank has the same batch, the same model and the same share
of the cores, so its work is the same. Each arm runs in its own processes, since the jobs differ in size.

`all` trains on more samples by the number of ranks, so the verdict is on time per sample: on two ranks -50 % is ideal.
`traceq diff` explains why a rank's step takes longer: exposed communication by collective, the reducer's hooks by their
ops (`torch.distributed.ddp.reducer::...` in `bwd`). `traceq show RUN/all` splits each rank's time in collectives into
transfer and skew, which is waiting for the last rank. `late_us` delays the last rank's data by that much at every step:
a known skew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from traceq.recipes.workload.parameters import PHASES, TrainingParameters
from traceq.recorder import Arm, Context, Recipe, Step

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """Parameters that `--set` and `--vary` can change."""

    late_us: Annotated[int, Meta(ge=0)] = 0


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step of a single rank (`one`) or of one rank among several (`all`)."""
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
    question="What does scaling out cost: communication, DDP's hooks, or waiting for other ranks?",
    arms=(
        Arm("one", "a single rank", baseline=True, num_ranks=1),
        Arm("all", "all ranks under DDP, each with the same batch"),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    varied="all",
    samples_per_rank=lambda parameters: parameters.batch_size,
    apart=True,
)
