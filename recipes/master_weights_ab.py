"""With bfloat16 weights: can Adam's state be bfloat16 too, or does it need float32 masters, and on which device?

bfloat16 has 8 significant bits, so an update smaller than about 1/256 of a weight is rounded away, which applies to
most updates at usual learning rates. Float32 masters preserve them; with their moments they take 12 bytes per parameter
beside the weight, where bfloat16 moments take 4. On the CPU they free device memory, at the price of copying all
gradients to the host and all weights back in every `optim_step`, with the host blocked.

Before timing, each arm trains `loss_steps` steps on the same batch, from the same weights. `traceq show` and `traceq
diff` print the final loss (`loss`), dtype and device of the tensors that the optimizer updates (`state`), and the bytes
of weights, masters and moments (`state_bytes`) of each arm.

Result: a verdict on `masters` against `bf16`, and on `masters_on_cpu` against `masters`, with the copies that were
added in `optim_step`. All arms update the same weights alternately: separate models would also differ by their memory
layout, by up to one percent of a step (`benchmarks/layout.py`). On a CPU `masters_on_cpu` equals `masters`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from traceq.recipes.workload.parameters import PHASES, TrainingParameters
from traceq.recorder import Arm, Context, Fact, Recipe, Step, Unit

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """Parameters that `--set` and `--vary` can change."""

    loss_steps: Annotated[int, Meta(ge=1)] = 30


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step for all arms; they differ in dtype and device of the tensors the optimizer updates."""
    from contextlib import nullcontext
    from functools import partial

    import torch
    from torch import nn

    from traceq.recipes.workload.model import SIZES, Size, VisionLanguageAction
    from traceq.recipes.workload.precision import masters_bytes, state_text
    from traceq.recipes.workload.training import Training

    def in_bfloat16(size: Size) -> nn.Module:
        return VisionLanguageAction(replace(size, weights=torch.bfloat16))

    size, batch_size, seed = parameters.size, parameters.batch_size, parameters.seed
    shared = Training.build(context, size, batch_size, parameters.num_workers, seed, in_bfloat16)
    weights = [weight.detach() for weight in shared.model.parameters()]
    initial = [weight.clone() for weight in weights]
    make: dict[str, Callable[[], Training]] = {
        "bf16": shared.with_optimizer,
        "masters": partial(shared.with_masters, context.device),
        "masters_on_cpu": partial(shared.with_masters, torch.device("cpu")),
    }
    batch = SIZES[size].episodes(seed, context.rank).batch(batch_size).to(context.device)
    trainings: dict[str, Training] = {}
    for arm in make:
        for weight, start in zip(weights, initial, strict=True):
            weight.copy_(start)
        training = trainings[arm] = make[arm]()
        for _ in range(parameters.loss_steps):
            torch.manual_seed(seed)
            training.forward(batch)
            training.update(lambda _: nullcontext())
        context.facts[f"loss.{arm}"] = float(training.last_loss)
        context.facts[f"state.{arm}"] = state_text(training.optimizer)
        context.facts[f"state_bytes.{arm}"] = masters_bytes(training.model, training.optimizer)

    return lambda arm: trainings[arm].step(context.phase)


recipe = Recipe(
    question="What do float32 master weights cost beside bfloat16 weights, on the device or on the CPU?",
    arms=(
        Arm("bf16", "weights and moments in bfloat16", baseline=True),
        Arm("masters", "weights in bfloat16, masters and moments in float32 on the device"),
        Arm(
            "masters_on_cpu",
            "masters and moments on the CPU: every step copies gradients there and weights back",
            against="masters",
        ),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    facts=(
        Fact("loss", "loss", Unit.NUMBER),
        Fact("state", "the optimizer updates"),
        Fact("state_bytes", "weights, masters, moments", Unit.BYTES),
    ),
    varied="masters",
    samples_per_rank=lambda parameters: parameters.batch_size,
)
