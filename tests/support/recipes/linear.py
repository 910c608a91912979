"""Recipe of tests: a one-layer model whose ranks fail on demand."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from traceq.recorder import Arm, Context, Recipe, Step


@dataclass(frozen=True)
class Parameters:
    """Rank 1 ends as `end` says when it begins step `end_at`; `memory` at the first step of the arm slow after it.

    `sleep_all`: every rank sleeps for good in that step. `desync`: rank 1 gathers what rank 0 does not. `child`: rank 1
    starts a process that sleeps, and goes on.
    """

    width: int = 16
    sleep_ms: float = 1.0
    end: Literal[
        "never",
        "kill",
        "raise",
        "exit",
        "memory",
        "sleep",
        "sleep_all",
        "stop",
        "files",
        "mismatch",
        "long",
        "child",
        "desync",
    ] = "never"
    end_at: int = 60
    child_file: str = ""


def build(context: Context, parameters: Parameters) -> Step:
    import torch

    model = context.wrap(torch.nn.Linear(parameters.width, parameters.width))
    num_steps = 0

    def step(arm: str) -> None:
        nonlocal num_steps
        num_steps += 1
        if parameters.end == "memory" and num_steps >= parameters.end_at and context.rank == 1 and arm == "slow":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if num_steps == parameters.end_at and parameters.end == "mismatch":
            torch.distributed.all_reduce(torch.ones(1000 if context.rank else 4))
        if num_steps == parameters.end_at and parameters.end == "desync" and context.rank == 1:
            torch.distributed.all_gather([torch.ones(8) for _ in range(context.world_size)], torch.ones(8))
        if num_steps == parameters.end_at and (context.rank == 1 or parameters.end == "sleep_all"):
            _end(parameters.end, parameters.child_file)
        with context.phase("forward"):
            loss = model(torch.ones(2, parameters.width)).square().mean()
            if arm == "slow":
                time.sleep(parameters.sleep_ms / 1000)
        with context.phase("backward"):
            loss.backward()
            model.zero_grad()

    return step


def _end(how: str, child_file: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        raise ValueError("an injected fault")
    if how == "exit":
        raise SystemExit(0)
    if how in ("sleep", "sleep_all"):
        time.sleep(1e6)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "long":
        raise ValueError("z" * 5_000_000)
    if how == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"])
        Path(child_file).write_text(str(child.pid))
    if how == "files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 9, 4096))
        while True:
            _HELD.append(open(__file__))  # noqa: SIM115


_HELD: list[object] = []

recipe = Recipe(
    question="Does a sleep show?",
    phases=("forward", "backward"),
    parameters=Parameters(),
    build=build,
    arms=(Arm("fast", "does not sleep", baseline=True), Arm("slow", "sleeps in forward")),
    varied="slow",
)
