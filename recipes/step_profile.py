"""Where does the time of a training step go, and how many samples a second does the job train on?

The step is that of a trainer: fetch a batch, forward, backward, unscale and clip, optimizer step, zero the gradients
and advance the schedule, five metrics gathered over all ranks. One arm, 20 warm-up steps, 200 timed steps (on CUDA 224,
by the device's clock), without a profiler and without pauses.

Result: a table with mean, median, 95th percentile and share of each of the seven phases and of the time outside them;
the job's samples per second, by its slowest rank; peak memory on the worst rank since warm-up. It is printed at the
end, and again by `traceq show RUN`; `--json` has it as `step_profile`, with `backward_step`, the sum from backward to
the schedule, beside the phases.

With `grad_accum=4` a step is four batches and one update, on four times the samples; ranks reduce gradients once.
`no_optim=1` omits the update: clipping, optimizer and schedule. `load_us` slows the loader by that much per sample: a
known truth. `cameras=2` are two images per sample, `prompts=ragged` prompts of different lengths, padded to the longest
of a batch and masked. `find_unused` makes DDP search for parameters that forward did not use. `--vary KEY=A,B`
compares any two: `--vary optimizer=foreach,fused`. Values of `attention`, `compile` and `precision` each run in
separate processes; an interval needs at least four per value (`--replicates 4`). The optimizer updates float32 weights
(masters, where a size computes in bfloat16) with float32 moments; with `precision=bfloat16` both are bfloat16. Its
tensors are verified and noted (`state`).

Under DeepSpeed, around whose loop `traceq.record(...)` goes, one call clips, steps and zeroes: these phases cannot be
separated, and the table says so.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from traceq.recipes.workload.parameters import PHASES, ModelParameters
from traceq.recorder import Context, Fact, Recipe, Step

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(ModelParameters):
    """Parameters that `--set` and `--vary` can change."""

    grad_accum: Annotated[int, Meta(ge=1)] = 1
    find_unused: bool = False
    optimizer: Literal["foreach", "fused", "loop"] = "foreach"
    compile: bool = False
    no_optim: bool = False
    prefetch_factor: Annotated[int, Meta(ge=1)] = 2
    load_us: Annotated[int, Meta(ge=0)] = 0


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step with the options of the parameters."""
    import torch

    from traceq.recipes.workload.model import Size, VisionLanguageAction, set_options
    from traceq.recipes.workload.precision import note_state_after_step
    from traceq.recipes.workload.training import Training

    def make(size: Size) -> VisionLanguageAction:
        model = VisionLanguageAction(size)
        set_options(model, attention=parameters.attention, checkpointing=parameters.checkpointing)
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
        precision=parameters.precision,
        cameras=parameters.cameras,
        prompts=parameters.prompts,
        find_unused_parameters=parameters.find_unused,
    )
    implementations = {
        "foreach": {"foreach": True},
        "fused": {"fused": True},
        "loop": {"foreach": False, "fused": False},
    }
    training = training.with_optimizer(**implementations[parameters.optimizer])
    note_state_after_step(context, training.optimizer, parameters.precision)
    training.norm = torch.zeros((), device=context.device)  # the metric's value if gradients are not clipped

    def accumulate(*, last: bool) -> None:
        with nullcontext() if last else training.without_reduction():
            training.begin(context.phase)
            with context.phase("bwd"):
                training.backward(1 / parameters.grad_accum)

    def step(arm: str) -> None:
        for num_left in reversed(range(parameters.grad_accum)):
            accumulate(last=num_left == 0)
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
    facts=(Fact("state", "the optimizer updates"),),
    varied_apart=("attention", "compile", "precision"),
)
