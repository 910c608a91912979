"""Memory format of the weights of convolutions, which their inputs follow: off or channels_last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import nn

from traceq.errors import UsageFault
from traceq.recorder.toggles.toggle import Job

CANDIDATES = ("on",)


class ChannelsLastToggle:
    """Two buffers of each 2-D weight; gradients and optimizer state, which kernels expect to be alike, follow it.

    Convolutions may choose other algorithms, so that losses differ by rounding.
    """

    changes_ops = True

    def __init__(self, weights: Sequence[nn.Parameter], job: Job, values: Sequence[str]) -> None:
        self._optimizers, self._values = job.optimizers, values
        self._buffers = {
            weight: (weight.data, torch.empty_like(weight.data, memory_format=torch.channels_last))
            for weight in weights
        }

    def apply(self, number: int) -> None:
        """Move weights into the buffers of the n-th value, between two steps."""
        is_on = self._values[number] == "on"
        for weight, buffers in self._buffers.items():
            if weight.data_ptr() != buffers[is_on].data_ptr():
                self._move(weight, buffers[is_on])

    def fault(self, number: int) -> str:
        """Return that a weight is in the other buffer."""
        is_on = self._values[number] == "on"
        differ = any(weight.data_ptr() != each[is_on].data_ptr() for weight, each in self._buffers.items())
        return f"a weight is {'not ' if is_on else ''}channels_last" if differ else ""

    def restore(self) -> None:
        """Move weights back into the job's own buffers."""
        for weight, (buffer, _) in self._buffers.items():
            if weight.data_ptr() != buffer.data_ptr():
                self._move(weight, buffer)

    def _move(self, weight: nn.Parameter, buffer: torch.Tensor) -> None:
        with torch.no_grad():
            for optimizer in self._optimizers:
                state: dict[str, Any] = optimizer.state.get(weight, {})
                for key, value in state.items():
                    if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                        state[key] = torch.empty_like(buffer, dtype=value.dtype).copy_(value)
            if weight.grad is not None:
                weight.grad = torch.empty_like(buffer).copy_(weight.grad)
            weight.data = buffer.copy_(weight.data)


def create(job: Job, values: Sequence[str]) -> ChannelsLastToggle:
    """Return the toggle; UsageFault without weights of 2-D convolutions that nothing else holds a view of."""
    kinds = (nn.Conv2d, nn.ConvTranspose2d)
    layers = [module for model in job.models for module in model.modules() if isinstance(module, kinds)]
    weights = list(dict.fromkeys(layer.weight for layer in layers if _is_plain(layer.weight)))
    if not weights or any(getattr(model, "gradient_as_bucket_view", False) for model in job.models):
        raise UsageFault("no model has 2-D convolutions with weights of their own")
    return ChannelsLastToggle(weights, job, values)


def _is_plain(weight: torch.Tensor) -> TypeGuard[nn.Parameter]:
    """Return whether a weight is a contiguous parameter that fills its storage: not a part of a flat one."""
    is_whole = weight.untyped_storage().nbytes() == weight.numel() * weight.element_size()
    return type(weight) is nn.Parameter and weight.is_contiguous() and is_whole
