"""How ranks agree before they branch: one question at a time, all at once, or, by mistake, not at all."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["agreed_one_by_one", "agreed_together", "gathered_alone", "not_agreed"]


def not_agreed(flags: Tensor) -> list[bool]:
    """No answers: nobody is asked, and the flags stay where they are."""
    return []


def agreed_one_by_one(flags: Tensor) -> list[bool]:
    """True where any rank's flag is set: a collective and an `.item()` a flag, so the host waits as often."""
    answers = []
    for flag in flags.clone().unbind():
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        answers.append(flag.item() > 0)
    return answers


def agreed_together(flags: Tensor) -> list[bool]:
    """The same answers from one collective, which the host waits for once."""
    together = flags.clone()
    dist.all_reduce(together, op=dist.ReduceOp.MAX)
    return [flag > 0 for flag in together.tolist()]


def gathered_alone(flags: Tensor) -> None:
    """What a rank does that decided by its own flag: a collective that no other rank issues."""
    dist.all_gather([torch.empty_like(flags) for _ in range(dist.get_world_size())], flags)
