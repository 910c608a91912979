"""What does one more addition cost a step?

A recipe of another package: `traceq record --recipe toy`.
"""

from dataclasses import dataclass

from traceq.recorder import Arm, Context, Recipe, Step


@dataclass(frozen=True)
class Parameters:
    """Values that --set changes."""

    size: int = 64


def build(context: Context, parameters: Parameters) -> Step:
    """Return the step that both arms share."""
    import torch

    ones = torch.ones(parameters.size, parameters.size, device=context.device)

    def step(arm: str) -> None:
        with context.phase("forward"):
            product = ones @ ones
            if arm == "on":
                product += 1

    return step


recipe = Recipe(
    question="What does one more addition cost a step?",
    arms=(Arm("off", "a product", baseline=True), Arm("on", "a product, and one addition")),
    phases=("forward",),
    parameters=Parameters(),
    build=build,
)
