"""Which parameters would DDP refuse, and what does it cost to let it search for them?

DDP waits for a gradient of every parameter that requires one. A parameter that the loss does not reach ends the second
step with "Expected to have finished reduction in the prior iteration". The remedy that this message suggests,
`find_unused_parameters=True`, traverses the whole graph after every forward pass, and all-reduces a map of used
parameters beside the gradients. The other remedy is to freeze unused parameters.

Before wrapping, one backward pass classifies every parameter: UNUSED (no gradient: DDP would refuse it), ZERO-GRAD (all
gradients zero), FROZEN (requires no gradient) or USED, with counts, and shapes by module. The model has some of each:
an auxiliary head that the loss ignores, a head multiplied by zero, a frozen image encoder
(`--set frozen_encoder=false` trains it).

Result: that list, printed when the recording begins (counts and the unused names are noted in the run's environment),
and a verdict on `on` against `off`: the cost of searching per step, with the reduction of the map that it adds to
backward.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceq.recipes.workload.parameters import PHASES, TrainingParameters
from traceq.recorder import Arm, Context, Fact, Recipe, Step, Unit

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """Parameters that `--set` and `--vary` can change."""

    frozen_encoder: bool = True


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step for both arms, each with a separate model: `find_unused_parameters` is fixed per DDP."""
    from functools import partial

    from torch import nn

    from traceq.recipes.workload.model import SIZES, Size
    from traceq.recipes.workload.training import Training
    from traceq.recipes.workload.unused_gradients import Use, WithUnusedHeads, parameter_uses, usage_lines

    size, seed = SIZES[parameters.size], parameters.seed
    probe = WithUnusedHeads(size, parameters.frozen_encoder).to(context.device)
    batch = size.episodes(seed, context.rank).batch(parameters.batch_size).to(context.device)
    uses = parameter_uses(probe, probe(batch))
    for line in usage_lines(uses):
        context.say(line)
    for use in Use:
        context.facts[f"parameters.{use}"] = sum(each.size for each in uses if each.use is use)
    unused = {f"{each.module}.{each.name}" for each in uses if each.use is Use.UNUSED}
    context.facts["parameters.unused_names"] = ", ".join(sorted(unused))

    def without_unused(size: Size) -> nn.Module:
        model = WithUnusedHeads(size, parameters.frozen_encoder)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and name not in unused)
        return model

    train = partial(Training.build, context, parameters.size, parameters.batch_size, parameters.num_workers, seed)
    off = train(without_unused)
    on = train(lambda size: WithUnusedHeads(size, parameters.frozen_encoder), find_unused_parameters=True)
    context.separate_builds("off", "on")
    trainings = {"off": off, "on": on}

    return lambda arm: trainings[arm].step(context.phase)


recipe = Recipe(
    question="Which parameters would DDP refuse, and what does find_unused_parameters cost?",
    arms=(
        Arm("off", "unused parameters are frozen, and DDP does not search", baseline=True),
        Arm("on", "unused parameters stay trainable, and DDP searches at every step: find_unused_parameters=True"),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    facts=(
        Fact("parameters.UNUSED", "parameters without a gradient", Unit.COUNT, of_run=True),
        Fact("parameters.unused_names", "unused", of_run=True),
        Fact("parameters.ZERO-GRAD", "with a gradient of zero", Unit.COUNT, of_run=True),
        Fact("parameters.FROZEN", "frozen", Unit.COUNT, of_run=True),
        Fact("parameters.USED", "used", Unit.COUNT, of_run=True),
    ),
    varied="off",
    samples_per_rank=lambda parameters: parameters.batch_size,
)
