"""Is fused AdamW worth it: how many ops and kernels does the optimizer step take, and how long do they take?

A loop over parameters launches a dozen kernels per parameter; `foreach` runs each of the dozen for all parameters at
once; `fused` is one kernel per group of parameters. Under a GradScaler there is a second difference: `foreach` and the
loop must know whether a gradient overflowed before they step, so the host fetches `found_inf.item()`, while the fused
kernel reads that flag on the device. `--set scaler=false` turns the scaler off.

All arms train the same weights on the same batches; each has separate moments, so they take three times the memory.

Result: a verdict on each arm against `foreach`, with the ops that were added and removed in `optim_step`: `loop` adds
thousands, `fused` removes them, and one scalar sync.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.errors import RecordingFailed
from traceq.recipes.workload.parameters import PHASES, TrainingParameters
from traceq.recorder import Arm, Context, Recipe, Step

if TYPE_CHECKING:
    import torch

__all__ = ["check_unscaling", "recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """Parameters that `--set` and `--vary` can change."""

    scaler: bool = True


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step for all arms; they differ in the optimizer."""
    import torch

    from traceq.recipes.workload.training import Training

    shared = Training.build(context, parameters.size, parameters.batch_size, parameters.num_workers, parameters.seed)
    shared.scaler = torch.amp.GradScaler(context.device.type, enabled=parameters.scaler)
    if parameters.scaler:
        check_unscaling(next(shared.model.parameters()))
    trainings = {
        "foreach": shared.with_optimizer(foreach=True),
        "fused": shared.with_optimizer(fused=True),
        "loop": shared.with_optimizer(foreach=False, fused=False),
    }

    return lambda arm: trainings[arm].step(context.phase)


def check_unscaling(weights: torch.Tensor) -> None:
    """Raise RecordingFailed if torch cannot unscale gradients of this dtype (bfloat16 on most CUDA builds)."""
    import torch

    gradients, flag = [weights.new_ones(1)], torch.zeros(1, device=weights.device)
    try:
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, flag, torch.ones_like(flag))
    except RuntimeError as fault:
        raise RecordingFailed(
            f"GradScaler does not support {weights.dtype} weights here: --set scaler=false"
        ) from fault


recipe = Recipe(
    question="What does an AdamW step cost as foreach, fused, or a loop over parameters, under a GradScaler?",
    arms=(
        Arm("foreach", "each operation for all parameters at once, torch's default on CUDA", baseline=True),
        Arm("fused", "one kernel per group of parameters, which also reads the scaler's overflow flag"),
        Arm("loop", "each operation for each parameter"),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    varied="foreach",
    samples_per_rank=lambda parameters: parameters.batch_size,
)
