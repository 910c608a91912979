"""Is activation checkpointing worth its time: what does it recompute, what does it free, and does a larger batch pay?

With checkpointing a transformer block saves only its input; backward recomputes the rest. That costs about one more
forward pass of the blocks, and frees the activations they would have saved. It pays only if the freed memory is used:
`on_larger` trains on batches twice the size, and is compared by time per sample.

Result: two verdicts against `off`: `on` (the cost of recomputation per step, with the ops that backward runs again) and
`on_larger` (time per sample, hence samples/s). The memory that forward leaves for backward is counted from its tensors
(`held_bytes`); `traceq show` and `traceq diff` print it. On CUDA each step's peak is recorded beside its time.
`--vary batch_size=8,16,32` shows at which batch throughput stops growing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from msgspec import Meta

from traceq.recipes.workload.parameters import PHASES, TrainingParameters
from traceq.recorder import Arm, Context, Fact, Recipe, Step, Unit

__all__ = ["recipe"]

LARGER = 2


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """Parameters that `--set` and `--vary` can change."""

    batch_size: Annotated[int, Meta(ge=1)] = 4


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step for all arms; they differ in what blocks save, and `on_larger` also in its batches."""
    from traceq.recipes.memory.model_state import held_bytes
    from traceq.recipes.workload.model import SIZES, transformer_blocks
    from traceq.recipes.workload.training import Training

    seed, num_workers = parameters.seed, parameters.num_workers
    training = Training.build(context, parameters.size, parameters.batch_size, num_workers, seed)
    episodes = SIZES[parameters.size].episodes(seed, context.rank)
    larger = context.batches(episodes, LARGER * parameters.batch_size, num_workers)
    trainings = {"off": training, "on": training, "on_larger": replace(training, batches=larger)}
    blocks = transformer_blocks(training.model)

    def select(arm: str) -> Training:
        for block in blocks:
            block.recomputes = arm != "off"
        return trainings[arm]

    for arm, factor in {"off": 1, "on": 1, "on_larger": LARGER}.items():
        batch = episodes.batch(factor * parameters.batch_size).to(context.device)
        context.facts[f"held_bytes.{arm}"] = held_bytes(partial(select(arm).forward, batch))

    return lambda arm: select(arm).step(context.phase)


recipe = Recipe(
    question="What does activation checkpointing cost, what does it free, and does a larger batch pay for it?",
    arms=(
        Arm("off", "every activation is saved for backward", baseline=True),
        Arm("on", "blocks save only their input; backward recomputes the rest"),
        Arm("on_larger", f"the same with {LARGER} times the batch", samples_factor=LARGER),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    facts=(Fact("held_bytes", "left for backward", Unit.BYTES),),
    varied="on",
    samples_per_rank=lambda parameters: parameters.batch_size,
)
