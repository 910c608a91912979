"""Precision regimes: which dtype weights, masters and moments have, set in one place and verified on the objects.

With float32 masters AdamW updates copies of bfloat16 weights, on the device or on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from traceq.errors import RecordingFailed
from traceq.recipes.workload.model import SIZES, Size
from traceq.recipes.workload.parameters import Precision, Prompts
from traceq.recorder import Context

__all__ = [
    "adamw_with_masters",
    "dtype_of_state",
    "masters_bytes",
    "moments_of",
    "note_state",
    "note_state_after_step",
    "sized",
    "state_text",
    "updated_by",
]


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


def dtype_of_state(precision: Precision) -> torch.dtype:
    """Return the dtype of the weights that an optimizer updates, and of its moments."""
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def sized(size: str, precision: Precision = "float32_masters", cameras: int = 1, prompts: Prompts = "fixed") -> Size:
    """Return the dimensions of a model whose weights have the regime's dtype, and of its inputs."""
    weights, ragged = dtype_of_state(precision), prompts == "ragged"
    return replace(SIZES[size], weights=weights, cameras=cameras, ragged=ragged)


def note_state(context: Context, optimizer: torch.optim.Optimizer, precision: Precision) -> None:
    """Note the tensors that an optimizer updates as the fact `state`, once it has made a step.

    Raises RecordingFailed unless all of them, and all moments, have the regime's dtype.
    """
    expected, tensors = dtype_of_state(precision), [*updated_by(optimizer), *moments_of(optimizer)]
    context.facts["precision"], context.facts["state"] = precision, state_text(optimizer)
    if wrong := _others(expected, (tensor.dtype for tensor in tensors)):
        raise RecordingFailed(f"precision={precision}: the optimizer holds {wrong}; expected {_name(expected)} alone")


def note_state_after_step(context: Context, optimizer: torch.optim.Optimizer, precision: Precision) -> None:
    """Do the same after the optimizer's first step, which makes the moments."""

    def check(*_: object) -> None:
        handle.remove()
        note_state(context, optimizer, precision)

    register: Callable[[Callable[..., None]], torch.utils.hooks.RemovableHandle] = optimizer.register_step_post_hook
    handle = register(check)


def _others(expected: torch.dtype, dtypes: Iterable[torch.dtype]) -> str:
    return " and ".join(sorted({_name(dtype) for dtype in dtypes if dtype is not expected}))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
