"""Precision regimes: which dtype weights, masters and moments have, set in one place and verified on the objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from traceq.errors import RecordingFailed
from traceq.recipes.workload.fp32_masters import moments_of, state_text, updated_by
from traceq.recipes.workload.model import SIZES, Size
from traceq.recipes.workload.parameters import Precision, Prompts
from traceq.recorder import Context

__all__ = ["dtype_of_state", "note_state", "note_state_after_step", "sized"]


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
