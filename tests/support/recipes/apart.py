"""Recipe of tests: arms in separate processes that end in every way an arm can."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from traceq.recorder import Arm, Context, Outcome, Recipe, Skip, Step


@dataclass(frozen=True)
class Parameters:
    """`more`: names of further arms, requested one by one; `absent`, `huge` and `broken` fail as their names say."""

    width: int = 16
    more: str = ""


def build(context: Context, parameters: Parameters) -> Step:
    import torch

    if context.arm == "absent":
        raise Skip("it is not installed")
    if context.arm == "broken":
        raise ValueError("an injected fault")
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
    """Return the first arm of `more` that has not run."""
    ran = {outcome.arm.name for outcome in outcomes}
    remaining = [name for name in parameters.more.split(",") if name and name not in ran]
    return [Arm(name, "requested after the others had run") for name in remaining[:1]]


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
