"""Where does the time of a training step go, and how much does the job get done?

The step is that of a trainer: fetch a batch, forward, backward, unscale and clip, the optimizer's step, zero the
gradients and move the schedule, five metrics gathered over all ranks. One arm, 20 steps to warm up, 200 measured (on
CUDA 224, by the device's clock) without a profiler and without a pause.

The answer is a table, mean, median, 95th percentile and share of each of the seven phases and of what is in none; the
job's samples a second by its slowest rank; the peak of memory on the worst rank, since warm-up. It is printed in the
end, and again by `traceq show RUN`; `--json` has it as `step_profile`, with `backward_step`, everything from backward
to the schedule, beside the phases.

With `grad_accum=4` a step is four batches and one update, and trains on four times the samples; ranks exchange
gradients once. `no_optim=1` leaves the update out: neither clipping, nor the optimizer, nor the schedule. `load_us`
makes each sample take so much longer in the loader: a known truth. `find_unused` has DDP look for parameters that
forward did not use. `--vary KEY=A,B` compares any two: `--vary optimizer=foreach,fused`. Values of `attention` and of
`compile` have processes of their own, four or more of each for an interval (`--replicates 4`).

Under DeepSpeed, around whose loop `traceq.record(...)` goes, one call clips, steps and zeroes: there these phases blur,
and the table says so.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from traceq.recipes.workload.parameters import TrainingParameters
from traceq.recipes.workload.phases import PHASES
from traceq.recorder import Context, Recipe, Step

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """What `--set` and `--vary` can change."""

    grad_accum: Annotated[int, Meta(ge=1)] = 1
    find_unused: bool = False
    optimizer: Literal["foreach", "fused", "loop"] = "foreach"
    attention: Literal["sdpa", "eager"] = "sdpa"
    checkpointing: bool = False
    compile: bool = False
    no_optim: bool = False
    prefetch_factor: Annotated[int, Meta(ge=1)] = 2
    load_us: Annotated[int, Meta(ge=0)] = 0


def build(context: Context, parameters: Parameters) -> Step:
    """One training step as the parameters ask for it."""
    import torch

    from traceq.recipes.workload.attention import by_ops
    from traceq.recipes.workload.model import Attention, Block, Size, VisionLanguageAction
    from traceq.recipes.workload.training import Training

    def make(size: Size) -> VisionLanguageAction:
        model = VisionLanguageAction(size)
        for module in model.modules():
            if isinstance(module, Block):
                module.recomputes = parameters.checkpointing
            if isinstance(module, Attention) and parameters.attention == "eager":
                module.mix = by_ops
        if parameters.compile:
            model.compile()
        return model

    training = Training.build(
        context,
        parameters.size,
        parameters.batch_size,
        parameters.num_workers,
        parameters.seed,
        make=make,
        prefetch_factor=parameters.prefetch_factor,
        batches_per_step=parameters.grad_accum,
        load_us=parameters.load_us,
        find_unused_parameters=parameters.find_unused,
    )
    implementations = {
        "foreach": {"foreach": True},
        "fused": {"fused": True},
        "loop": {"foreach": False, "fused": False},
    }
    training = training.with_optimizer(**implementations[parameters.optimizer])
    training.norm = torch.zeros((), device=context.device)  # of gradients that nobody clips

    def accumulate(*, last: bool) -> None:
        with nullcontext() if last else training.gradients_kept():
            training.begin(context.phase)
            with context.phase("bwd"):
                training.backward(1 / parameters.grad_accum)

    def step(arm: str) -> None:
        for left in reversed(range(parameters.grad_accum)):
            accumulate(last=left == 0)
        if parameters.no_optim:
            with context.phase("zero_grad_sched"):
                training.optimizer.zero_grad(set_to_none=True)
        else:
            training.apply(context.phase)
        with context.phase("sync_gather"):
            training.gather()

    return step


recipe = Recipe(
    question="Where does the time of a training step go, and how many samples a second does the job train on?",
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    samples_per_rank=lambda parameters: parameters.batch_size * parameters.grad_accum,
    steps=200,
    varied_apart=("attention", "compile"),
)
