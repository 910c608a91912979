"""Which parameters would DDP refuse, and what does it cost to let it search for them?

DDP waits for a gradient of every parameter that requires one. One that the loss does not reach ends the second step
with "Expected to have finished reduction in the prior iteration". The remedy that the message names,
`find_unused_parameters=True`, walks the whole graph after every forward pass, and reduces a map of what was used beside
the gradients. The other remedy is to freeze what is never used.

Before anything is wrapped, one backward pass tells for every parameter: UNUSED (no gradient arrives: DDP would refuse
it), ZERO-GRAD (a gradient of zeros), FROZEN (requires none) or USED, with counts, and shapes by module. The model here
has some of each: an auxiliary head that the loss leaves out, a head behind a gate that is shut, a frozen image encoder
(`--set frozen_encoder=false` trains it).

The answer is that list, told as the recording begins (counts and the unused names stand in the run's environment), and
a verdict on `on` against `off`: what searching costs a step, with the reduction of the map that it adds to backward.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceq.recipes.workload.parameters import TrainingParameters
from traceq.recipes.workload.phases import PHASES
from traceq.recorder import Arm, Context, Recipe, Step

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """What `--set` and `--vary` can change."""

    frozen_encoder: bool = True


def build(context: Context, parameters: Parameters) -> Step:
    """One training step for both arms, each with its own copy of the model: DDP is told once whether to search."""
    from functools import partial

    from torch import nn

    from traceq.recipes.workload.model import SIZES, Size
    from traceq.recipes.workload.training import Training
    from traceq.recipes.workload.unused_gradients import Use, usage_lines, uses_of
    from traceq.recipes.workload.unused_heads import WithLeftovers

    size, seed = SIZES[parameters.size], parameters.seed
    probe = WithLeftovers(size, parameters.frozen_encoder).to(context.device)
    found = uses_of(probe, probe(size.episodes(seed, context.rank).batch(parameters.batch_size).to(context.device)))
    for line in usage_lines(found):
        context.say(line)
    for use in Use:
        context.facts[f"parameters.{use}"] = sum(each.size for each in found if each.use is use)
    unused = {f"{each.module}.{each.name}" for each in found if each.use is Use.UNUSED}
    context.facts["parameters.unused_names"] = ", ".join(sorted(unused))

    def without_unused(size: Size) -> nn.Module:
        model = WithLeftovers(size, parameters.frozen_encoder)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and name not in unused)
        return model

    train = partial(Training.build, context, parameters.size, parameters.batch_size, parameters.num_workers, seed)
    off = train(without_unused)
    on = train(lambda size: WithLeftovers(size, parameters.frozen_encoder), find_unused_parameters=True)
    context.separate_builds("off", "on")
    trainings = {"off": off, "on": on}

    def step(arm: str) -> None:
        trainings[arm].begin(context.phase)
        trainings[arm].finish(context.phase)

    return step


recipe = Recipe(
    question="Which parameters would DDP refuse, and what does find_unused_parameters cost?",
    arms=(
        Arm("off", "what is unused is frozen, and DDP does not search", baseline=True),
        Arm("on", "nothing is frozen for DDP's sake, and it searches at every step: find_unused_parameters=True"),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    varied="off",
    samples_per_rank=lambda parameters: parameters.batch_size,
)
