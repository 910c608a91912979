"""Weights in bfloat16 whose AdamW works on copies in float32, on the device or left on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["masters_bytes", "state_text", "with_masters"]


def with_masters(parameters: Iterable[nn.Parameter], place: torch.device, **options: Any) -> torch.optim.AdamW:
    """An AdamW over float32 masters in `place`: each step fetches gradients first, and sends the new weights back."""
    weights = list(parameters)
    masters = [weight.detach().to(place, torch.float32, copy=True) for weight in weights]
    optimizer = torch.optim.AdamW(masters, **options)

    def fetch_gradients(*_: object) -> None:
        for master, weight in zip(masters, weights, strict=True):
            master.grad = None if weight.grad is None else weight.grad.to(place, torch.float32)

    def send_weights(*_: object) -> None:
        with torch.no_grad():
            for master, weight in zip(masters, weights, strict=True):
                weight.copy_(master)
                weight.grad = None

    optimizer.register_step_pre_hook(fetch_gradients)
    optimizer.register_step_post_hook(send_weights)
    return optimizer


def masters_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of weights, masters and moments after a step, wherever they lie."""
    held = {id(tensor): tensor.nbytes for tensor in [*model.parameters(), *_stepped(optimizer), *_moments(optimizer)]}
    return sum(held.values())


def state_text(optimizer: torch.optim.Optimizer) -> str:
    """`weights float32 on cpu, moments float32 on cpu`: what the optimizer steps on, after a step."""
    kinds = [("weights", _stepped(optimizer)), ("moments", _moments(optimizer))]
    return ", ".join(f"{name} {' and '.join(sorted(set(map(_kind, tensors))))}" for name, tensors in kinds)


def _stepped(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def _moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device.type}"
