"""Recipe of tests: a one-layer model whose ranks fail on demand."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Literal

from traceq.recorder import Arm, Context, Recipe, Step


@dataclass(frozen=True)
class Parameters:
    """Rank 1 ends as `end` says when it begins step `end_at`; `memory` at the first step of the arm slow after it."""

    width: int = 16
    sleep_ms: float = 1.0
    end: Literal["never", "kill", "raise", "exit", "memory"] = "never"
    end_at: int = 60


def build(context: Context, parameters: Parameters) -> Step:
    import torch

    model = context.wrap(torch.nn.Linear(parameters.width, parameters.width))
    num_steps = 0

    def step(arm: str) -> None:
        nonlocal num_steps
        num_steps += 1
        if parameters.end == "memory" and num_steps >= parameters.end_at and context.rank == 1 and arm == "slow":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if num_steps == parameters.end_at and context.rank == 1:
            _end(parameters.end)
        with context.phase("forward"):
            loss = model(torch.ones(2, parameters.width)).square().mean()
            if arm == "slow":
                time.sleep(parameters.sleep_ms / 1000)
        with context.phase("backward"):
            loss.backward()
            model.zero_grad()

    return step


def _end(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        raise ValueError("an injected fault")
    if how == "exit":
        raise SystemExit(0)


recipe = Recipe(
    question="Does a sleep show?",
    phases=("forward", "backward"),
    parameters=Parameters(),
    build=build,
    arms=(Arm("fast", "does not sleep", baseline=True), Arm("slow", "sleeps in forward")),
    varied="slow",
)
