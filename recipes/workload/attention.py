"""Attention functions, and for each the kernels it dispatches to, the bytes it saves for backward, and its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

__all__ = ["AttentionFunction", "attention_kernels", "eager_attention", "error_against_float64", "saved_bytes"]

AttentionFunction: TypeAlias = Callable[..., Tensor]
"""Of query, key and value, [B, H, N, D], and a mask that broadcasts to [B, H, N, N] or none: True where to attend."""

_KERNELS = ("aten::_scaled_dot_product_", "aten::_softmax", "aten::_fused_sdp", "Torch-Compiled Region", "triton_")


def eager_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute attention op by op, [B, H, N, D]: the matrix of weights is materialised and saved for backward."""
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    out: Tensor = scores.softmax(-1) @ value
    return out


def attention_kernels(attend: AttentionFunction, inputs: tuple[Tensor, ...]) -> str:
    """Return the attention kernels that a profile of one call contains; a first call compiles, if it is compiled."""
    on_gpu = inputs[0].is_cuda
    attend(*inputs)
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
        attend(*inputs)
    names = dict.fromkeys(event.name for event in profiler.events() or ())
    return ", ".join(name.partition(": ")[0] for name in names if name.startswith(_KERNELS))


def saved_bytes(forward: Callable[[], object], model: nn.Module) -> int:
    """Return the bytes that `forward` saves for backward, without the model's weights; shared storage counts once."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(saved.values())


def error_against_float64(attend: AttentionFunction, inputs: tuple[Tensor, ...]) -> tuple[float, float]:
    """Return the largest error of the output, and of the gradients of its sum of squares, against float64.

    `inputs` are query, key and value, and a mask if there is one.
    """
    outputs = []
    for function, dtype in ((attend, inputs[0].dtype), (eager_attention, torch.float64)):
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs[:3]]
        out = function(*leaves, *inputs[3:])
        outputs.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    errors = [(result - exact).abs().max().item() for result, exact in zip(*outputs, strict=True)]
    return errors[0], max(errors[1:])
