"""What does it cost that all ranks agree before they branch, and what happens when they do not?

Skip this batch? Save now? Stop early? A rank that decides alone leaves the others in a collective that it never issues.
So trainers let ranks agree first, often with one all-reduce of a scalar and one `.item()` per question. All questions
fit into one all-reduce and one sync.

Result: a verdict on `one_by_one` and on `together` against `none`, which has no agreement: the cost of agreeing, with
its syncs and collectives in the phase `agree`. For k questions `one_by_one` has k of each, `together` one.

`--set fault=desync` shows why ranks must agree: at step `fault_at` the last rank decides by its own flag and issues an
all-gather that no other rank issues. The recording then ends when the first collective times out (90 s), and reports
which collective differs, on which rank and at which line. The flight recorder dumps of the ranks are kept in
`RUN/stalled`, which `traceq show` reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from traceq.recipes.workload.parameters import PHASES, TrainingParameters
from traceq.recorder import Arm, Context, Recipe, Step

__all__ = ["recipe"]

NEVER = 1e9


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """Parameters that `--set` and `--vary` can change."""

    questions: Annotated[int, Meta(ge=1)] = 5
    fault: Literal["none", "desync"] = "none"
    fault_at: Annotated[int, Meta(ge=1)] = 20


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step for all arms; they differ in how ranks agree on whether to skip the batch."""
    import torch

    from traceq.recipes.workload.rank_agreement import agree_one_by_one, agree_together, gather_alone, skip_agreement
    from traceq.recipes.workload.training import Training

    training = Training.build(context, parameters.size, parameters.batch_size, parameters.num_workers, parameters.seed)
    limits = torch.full((parameters.questions,), NEVER, device=context.device)
    agree = {"none": skip_agreement, "one_by_one": agree_one_by_one, "together": agree_together}
    is_faulty = parameters.fault == "desync" and context.rank == context.world_size - 1
    num_steps = 0

    def step(arm: str) -> None:
        nonlocal num_steps
        num_steps += 1
        training.begin(context.phase)
        with context.phase("agree"):
            flags = (training.last_loss > limits).float()
            if is_faulty and num_steps == parameters.fault_at:
                gather_alone(flags)
            training.count_outlier(any(agree[arm](flags)))
        training.finish(context.phase)

    return step


recipe = Recipe(
    question="What does it cost that ranks agree before they branch, and what happens when they do not?",
    arms=(
        Arm("none", "ranks do not agree", baseline=True),
        Arm("one_by_one", "an all-reduce and an .item() for each question"),
        Arm("together", "one all-reduce and one sync for all questions"),
    ),
    phases=(*PHASES[:2], "agree", *PHASES[2:]),
    parameters=Parameters(),
    build=build,
    varied="one_by_one",
    samples_per_rank=lambda parameters: parameters.batch_size,
)
