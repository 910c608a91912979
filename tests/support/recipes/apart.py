"""Arms that run apart and end in every way an arm can: what recordings of tests run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from traceq.recorder import Arm, Context, Outcome, Recipe, Skip, Step


@dataclass(frozen=True)
class Parameters:
    """`more`: names of further arms, asked for one by one; `absent`, `huge` and `broken` end as they are called."""

    width: int = 16
    more: str = ""


def build(context: Context, parameters: Parameters) -> Step:
    import torch

    if context.arm == "absent":
        raise Skip("nobody installed it")
    if context.arm == "broken":
        raise ValueError("a fault of my own")
    if context.arm == "huge" and context.rank == 1:
        torch.empty(1 << 45, dtype=torch.uint8)
    context.facts["built"] = context.arm
    model = context.wrap(torch.nn.Linear(parameters.width, parameters.width))

    def step(arm: str) -> None:
        with context.phase("forward"):
            loss = model(torch.ones(2, parameters.width)).square().mean()
            time.sleep(0.004 if arm == "slow" else 0.0)
        with context.phase("backward"):
            loss.backward()
            model.zero_grad()

    return step


def next_arms(parameters: Parameters, outcomes: Sequence[Outcome]) -> list[Arm]:
    """The first of `more` that has not run."""
    known = {outcome.arm.name for outcome in outcomes}
    left = [name for name in parameters.more.split(",") if name and name not in known]
    return [Arm(name, "asked for when the others had run") for name in left[:1]]


recipe = Recipe(
    question="Does a sleep show across processes?",
    phases=("forward", "backward"),
    parameters=Parameters(),
    build=build,
    arms=(Arm("fast", "does not sleep", baseline=True), Arm("slow", "sleeps in forward")),
    varied="slow",
    apart=True,
    next_arms=next_arms,
    samples_per_rank=lambda parameters: 2,
)
