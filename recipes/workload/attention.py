"""Ways to mix values by attention, which kernel each of them ends in, what it keeps, and how exact it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

__all__ = ["Mix", "by_ops", "error_against_float64", "kernels_of", "saved_bytes"]

Mix: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
_KERNELS = ("aten::_scaled_dot_product_", "aten::_softmax", "aten::_fused_sdp", "Torch-Compiled Region", "triton_")


def by_ops(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention op by op, [B, H, N, D]: the whole matrix of weights is computed, and kept for backward."""
    weights = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).softmax(-1)
    mixed: Tensor = weights @ value
    return mixed


def kernels_of(mix: Mix, inputs: tuple[Tensor, ...]) -> str:
    """What attention was dispatched to, by the names that a profile of it holds; compiled before, if it compiles."""
    on_gpu = inputs[0].is_cuda
    mix(*inputs)
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
        mix(*inputs)
    names = dict.fromkeys(event.name for event in profiler.events() or ())
    return ", ".join(name.partition(": ")[0] for name in names if name.startswith(_KERNELS))


def saved_bytes(forward: Callable[[], object], model: nn.Module) -> int:
    """Bytes that `forward` saves for backward, but for the model's weights; what is saved twice counts once."""
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


def error_against_float64(mix: Mix, inputs: tuple[Tensor, ...]) -> tuple[float, float]:
    """Largest difference of the output, and of the gradients of its sum of squares, from the same in float64."""
    outputs = []
    for way, kind in ((mix, inputs[0].dtype), (by_ops, torch.float64)):
        leaves = [tensor.detach().to(kind).requires_grad_() for tensor in inputs]
        out = way(*leaves)
        outputs.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    apart = [float((ours - exact).abs().max()) for ours, exact in zip(*outputs, strict=True)]
    return apart[0], max(apart[1:])
