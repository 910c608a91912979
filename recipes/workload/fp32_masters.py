"""AdamW over float32 master copies of bfloat16 weights, on the device or on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["adamw_with_masters", "masters_bytes", "moments_of", "state_text", "updated_by"]


def adamw_with_masters(parameters: Iterable[nn.Parameter], device: torch.device, **options: Any) -> torch.optim.AdamW:
    """Return an AdamW over float32 masters on `device`: a step copies gradients there and the new weights back."""
    weights = list(parameters)
    masters = [weight.detach().to(device, torch.float32, copy=True) for weight in weights]
    optimizer = torch.optim.AdamW(masters, **options)

    def copy_gradients(*_: object) -> None:
        for master, weight in zip(masters, weights, strict=True):
            master.grad = None if weight.grad is None else weight.grad.to(device, torch.float32)

    def copy_weights_back(*_: object) -> None:
        with torch.no_grad():
            for master, weight in zip(masters, weights, strict=True):
                weight.copy_(master)
                weight.grad = None

    optimizer.register_step_pre_hook(copy_gradients)
    optimizer.register_step_post_hook(copy_weights_back)
    return optimizer


def masters_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of weights, masters and moments after a step, on any device."""
    sizes = {
        id(tensor): tensor.nbytes for tensor in [*model.parameters(), *updated_by(optimizer), *moments_of(optimizer)]
    }
    return sum(sizes.values())


def state_text(optimizer: torch.optim.Optimizer) -> str:
    """Return the tensors an optimizer updates, after a step: `weights float32 on cpu, moments float32 on cpu`."""
    groups = [("weights", updated_by(optimizer)), ("moments", moments_of(optimizer))]
    return ", ".join(f"{name} {' and '.join(sorted(set(map(_dtype_and_device, tensors))))}" for name, tensors in groups)


def updated_by(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors that an optimizer updates: weights, or their masters."""
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def moments_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return Adam's moments of all tensors that it has updated."""
    return [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq") if key in state]


def _dtype_and_device(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device.type}"
