"""Ways for ranks to agree before they branch: per question, all at once, or, by mistake, not at all."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["agree_one_by_one", "agree_together", "gather_alone", "skip_agreement"]


def skip_agreement(flags: Tensor) -> list[bool]:
    """Return no answers: ranks do not communicate, and the flags stay on the device."""
    return []


def agree_one_by_one(flags: Tensor) -> list[bool]:
    """Return for each flag whether any rank set it, with one all-reduce and one `.item()` per flag."""
    answers = []
    for flag in flags.clone().unbind():
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        answers.append(flag.item() > 0)
    return answers


def agree_together(flags: Tensor) -> list[bool]:
    """Return the same answers with one all-reduce and one sync for all flags."""
    together = flags.clone()
    dist.all_reduce(together, op=dist.ReduceOp.MAX)
    return [flag > 0 for flag in together.tolist()]


def gather_alone(flags: Tensor) -> None:
    """Issue an all-gather that no other rank issues, as after a decision by the local flag."""
    dist.all_gather([torch.empty_like(flags) for _ in range(dist.get_world_size())], flags)
