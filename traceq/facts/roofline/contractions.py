"""FLOPs of matrix products, convolutions and recurrent layers: exact, 2 M N K; and of fused attention.

As in torch.utils.flop_counter. Attention: forward 2 b h s t (d + dv), backward 2 b h s t (3 d + 2 dv) with the scores
computed anew; h are the query heads, as keys and values of grouped heads are used repeatedly.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from traceq.facts.roofline.op_calls import Kind, OpCall, Tensor, Work, dtype_of_code, total_bytes
from traceq.frozen import frozen

Formula = Callable[[OpCall], Work | None]


def _product(first: int, out_dtype: int = -1) -> Formula:
    """Return the formula of the product of the inputs `first` and `first` + 1, whose matrices are the last two sizes.

    `out_dtype` is the position of the code of the result's dtype, -1 if it is that of the operands.
    """

    def formula(call: OpCall) -> Work | None:
        a, b = call.tensor(first), call.tensor(first + 1)
        if a is None or b is None or len(a.shape) < 2 or len(a.shape) != len(b.shape) or a.shape[-1] != b.shape[-2]:
            return None
        batch = prod(a.shape[:-2])
        m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
        return _of_product(call, a, b, batch * m * n, k, out_dtype)

    return formula


def _of_product(call: OpCall, a: Tensor, b: Tensor, num_out: int, k: int, out_dtype: int = -1) -> Work:
    packed = 2 if a.dtype == "float4" else 1
    dtype = (dtype_of_code(call.value(out_dtype)) if out_dtype >= 0 else "") or a.dtype
    moved = total_bytes([a, b]) + Tensor((num_out,), dtype).bytes
    return Work(Kind.CONTRACTION, moved, a.dtype, flops=2 * num_out * k * packed)


_DTYPE_OF_GROUPS = {"aten::_grouped_mm": 4, "aten::_scaled_grouped_mm": 7, "aten::_scaled_grouped_mm_v2": 10}
"""Position of the code of the result's dtype in grouped products."""


def _grouped(call: OpCall) -> Work | None:
    """Return at most the work of rows times a matrix for each group: how many rows a group has is in a tensor."""
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None or (len(a.shape), len(b.shape)) != (2, 3) or a.shape[1] != b.shape[1]:
        return None
    work = _of_product(call, a, b, a.shape[0] * b.shape[2], a.shape[1], _DTYPE_OF_GROUPS[call.name])
    return replace(work, is_bound=True)


def _vector_product(first: int) -> Formula:
    """Return the formula of a matrix times a vector, of which torch.utils.flop_counter has none."""

    def formula(call: OpCall) -> Work | None:
        a, b = call.tensor(first), call.tensor(first + 1)
        if a is None or b is None or len(b.shape) != 1 or a.shape[-1:] != b.shape:
            return None
        return _of_product(call, a, b, prod(a.shape[:-1]), b.shape[0])

    return formula


def _times_transposed(call: OpCall) -> Work | None:
    """Return the work of [M, K] times the transpose of [N, K]."""
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None or len(b.shape) != 2 or a.shape[-1:] != b.shape[-1:]:
        return None
    return _of_product(call, a, b, prod(a.shape[:-1]) * b.shape[0], b.shape[1])


_TEMPLATE = re.compile(r"^triton_tem_fused_(\w+_)?(mm|addmm|bmm|baddbmm)_")
"""Kernels that Inductor makes of a template for one product, and what it fused to it."""


def product_template(name: str) -> Formula | None:
    """Return the formula of a kernel of Inductor that multiplies matrices, by its name; None for any other."""
    return _of_template if _TEMPLATE.search(name) else None


def _of_template(call: OpCall) -> Work | None:
    """Return the work of a product whose arguments are both operands first, then what is fused, and the result.

    None where these are not the sizes of a product, as of an operand that is a part of a larger buffer.
    """
    matrices = [tensor for tensor in call.tensors if len(tensor.shape) > 1]
    if len(matrices) < 3 or len(matrices[0].shape) != len(matrices[1].shape):
        return None
    a, b, *rest = matrices
    k, (rows, columns) = a.shape[-1], b.shape[-2:]
    n = columns if rows == k else rows if columns == k else None
    if n is None or not any(tensor.shape == (*a.shape[:-1], n) for tensor in rest):
        return None
    work = _of_product(call, a, b, prod(a.shape[:-1]) * n, k)
    return replace(work, bytes=total_bytes(call.tensors))


# ---- convolutions: 2 N prod(spatial sizes of the result; transposed: of the input) prod(weight), which has the groups


def _convolution(stride: int, padding: int, dilation: int, transposed: int | bool = False, groups: int = 8) -> Formula:
    """Return the formula of a forward convolution, with the positions of its arguments."""

    def formula(call: OpCall) -> Work | None:
        x, weight = call.tensor(0), call.tensor(1)
        if x is None or weight is None or len(x.shape) < 3 or len(x.shape) != len(weight.shape):
            return None
        is_transposed = transposed if isinstance(transposed, bool) else call.value(transposed)
        pad, output_padding = call.value(padding), None
        if is_transposed:
            output_padding = call.value(transposed + 1 if type(transposed) is int else padding + 1)
        out = _spatial(x, weight, call.value(stride), pad, call.value(dilation), output_padding, is_transposed)
        if out is None:
            grad = call.partner[1] if len(call.partner) > 1 else None
            out = grad.shape[2:] if isinstance(grad, Tensor) and grad.shape[:1] == x.shape[:1] else None
        if out is None or len(out) != len(x.shape) - 2:
            return None
        channels = weight.shape[1] * _groups(call, groups) if is_transposed else weight.shape[0]
        result = Tensor((x.shape[0], channels, *out), x.dtype)
        over = x.shape[2:] if is_transposed else out
        moved = total_bytes([x, weight, result])
        return Work(Kind.CONTRACTION, moved, x.dtype, 2 * x.shape[0] * prod(over) * weight.numel)

    return formula


def _groups(call: OpCall, position: int) -> int:
    """Return the groups of a transposed convolution, whose weight is [in, out / groups, ...]."""
    groups = call.value(position)
    return groups if type(groups) is int else 1


def _spatial(
    x: Tensor, weight: Tensor, stride: object, padding: object, dilation: object, extra: object, is_transposed: object
) -> tuple[int, ...] | None:
    """Return the spatial sizes of the result; None without the arguments that decide them."""
    dims = len(x.shape) - 2
    steps, pads, gaps = (_per_dimension(value, dims) for value in (stride, padding, dilation))
    if steps is None or pads is None or gaps is None or 0 in steps:
        return None
    more = _per_dimension(extra, dims) or (0,) * dims
    sizes = []
    for size, kernel, step, pad, gap, extra_size in zip(
        x.shape[2:], weight.shape[2:], steps, pads, gaps, more, strict=True
    ):
        reach = gap * (kernel - 1) + 1
        sizes.append(
            (size - 1) * step - 2 * pad + reach + extra_size if is_transposed else (size + 2 * pad - reach) // step + 1
        )
    return tuple(sizes)


def _per_dimension(value: object, dims: int) -> tuple[int, ...] | None:
    if not isinstance(value, list | tuple) or not all(type(each) is int for each in value):
        return None
    return tuple(value) * dims if len(value) == 1 else tuple(value) if len(value) == dims else None


def _convolution_backward(call: OpCall) -> Work | None:
    """Return the work of the gradients that `output_mask` asks for; the bias's has no FLOPs."""
    grad, x, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    mask = call.value(10)
    if grad is None or x is None or weight is None or not isinstance(mask, list) or len(mask) != 3:
        return None
    over = x.shape[2:] if call.value(7) else grad.shape[2:]
    each = 2 * grad.shape[0] * prod(over) * weight.numel
    moved = total_bytes([grad]) + sum(
        total_bytes(tensors) for is_wanted, tensors in zip(mask, ([weight, x], [x, weight]), strict=False) if is_wanted
    )
    return Work(Kind.CONTRACTION, moved, grad.dtype, each * (bool(mask[0]) + bool(mask[1])))


def _convolution_backward_input(call: OpCall) -> Work | None:
    """Return the work of cuDNN's op for the gradient of the input (2021): sizes of the input, gradient, weight."""
    grad, weight = call.tensor(1), call.tensor(2)
    x = next(iter(call.partner), None)
    if grad is None or weight is None:
        return None
    moved = total_bytes([grad, weight]) + (grad.sized(x.numel) if isinstance(x, Tensor) else 0)
    return Work(Kind.CONTRACTION, moved, grad.dtype, 2 * grad.shape[0] * prod(grad.shape[2:]) * weight.numel)


def _convolution_backward_weight(call: OpCall) -> Work | None:
    """Return the work of cuDNN's op for the gradient of the weight (2021), whose size only its parent records."""
    grad, x = call.tensor(1), call.tensor(2)
    weight = call.partner[2] if len(call.partner) > 2 else None
    if grad is None or x is None or not isinstance(weight, Tensor):
        return None
    moved = total_bytes([grad, x]) + grad.sized(weight.numel)
    return Work(Kind.CONTRACTION, moved, grad.dtype, 2 * grad.shape[0] * prod(grad.shape[2:]) * weight.numel)


# ---- recurrent layers


def _recurrent(factor: int, *, in_list: bool) -> Formula:
    """Return the formula of a fused recurrent layer: each weight matrix times each of the T B inputs."""

    def formula(call: OpCall) -> Work | None:
        x = call.tensor(0)
        if x is None or len(x.shape) != 3:
            return None
        weights = call.list_of(1) if in_list else tuple(filter(None, (call.tensor(index) for index in (1, 2))))
        matrices = [weight for weight in weights if len(weight.shape) == 2]
        flops = 2 * x.shape[0] * x.shape[1] * sum(weight.numel for weight in matrices) * factor
        return Work(Kind.CONTRACTION, total_bytes([x, *matrices]), x.dtype, flops) if matrices else None

    return formula


CONVOLUTION_BACKWARDS = (
    "aten::cudnn_convolution_backward",
    "aten::convolution_backward",
    "aten::miopen_convolution_backward",
)
CONVOLUTION_FORWARDS = (
    "aten::convolution",
    "aten::_convolution",
    "aten::cudnn_convolution",
    "aten::miopen_convolution",
)
CONTRACTIONS: dict[str, Formula] = {
    "aten::mm": _product(0),
    "aten::bmm": _product(0),
    "aten::addmm": _product(1),
    "aten::_addmm_activation": _product(1),
    "aten::baddbmm": _product(1),
    "aten::addbmm": _product(1),
    "aten::_int_mm": _product(0),
    "aten::_scaled_mm": _product(0, out_dtype=6),
    "aten::_scaled_mm_v2": _product(0, out_dtype=9),
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm_v2": _grouped,
    "aten::mv": _vector_product(0),
    "aten::addmv": _vector_product(1),
    "aten::dot": _vector_product(0),
    "aten::vdot": _vector_product(0),
    "mkldnn::_linear_pointwise": _times_transposed,
    "aten::mkldnn_linear": _times_transposed,
    "vllm::rocm_unquantized_gemm": _times_transposed,
    "vllm::w8a8_triton_block_scaled_mm_func": _times_transposed,
    **dict.fromkeys(("_C::cutlass_scaled_mm", "_C::cutlass_scaled_mm_azp"), _product(1)),
    **{f"sgl_kernel::{name}_scaled_mm": _product(0) for name in ("fp8", "int8", "fp8_blockwise")},
    "aten::convolution": _convolution(3, 4, 5, 6),
    "aten::_convolution": _convolution(3, 4, 5, 6),
    "aten::cudnn_convolution": _convolution(3, 2, 4),
    "aten::cudnn_convolution_transpose": _convolution(4, 2, 5, transposed=True, groups=6),
    "aten::miopen_convolution": _convolution(4, 3, 5),
    "aten::miopen_depthwise_convolution": _convolution(4, 3, 5),
    "aten::mkldnn_convolution": _convolution(4, 3, 5),
    "aten::cudnn_convolution_relu": _convolution(3, 4, 5),
    "aten::_conv_depthwise2d": _convolution(4, 5, 6),
    "aten::convolution_backward": _convolution_backward,
    "aten::cudnn_convolution_backward_input": _convolution_backward_input,
    "aten::cudnn_convolution_backward_weight": _convolution_backward_weight,
    "aten::miopen_convolution_backward_input": _convolution_backward_input,
    "aten::miopen_convolution_backward_weight": _convolution_backward_weight,
    "aten::_cudnn_rnn": _recurrent(1, in_list=True),
    "aten::_cudnn_rnn_backward": _recurrent(2, in_list=True),
    "aten::mkldnn_rnn_layer": _recurrent(1, in_list=False),
    "aten::mkldnn_rnn_layer_backward": _recurrent(2, in_list=False),
}
"""Formula of each op whose FLOPs are those of contractions, by its name in a trace."""


_LONGEST = 1 << 22
"""Queries up to which masked pairs are counted one query at a time."""


@frozen
class _Layout:
    """Where an attention op has its inputs; -1 for what it has not.

    `q`: position of the query, which key and value follow. `heads_at`: axis of the heads. `causal`, `max_q` (which
    max_k follows), `cumulative` (offsets of packed queries), `window` (left; right follows): positions.
    `num_keys`: position of the tensor with an entry for each key in use, where keys are those of a cache.
    `bottom_right`: the causal mask lets the last query see the last key. `is_bound`: lengths are never recorded.
    `has_mask_type`: `causal` is a number, of which 1 and 2 are causal masks.
    """

    q: int = 0
    heads_at: int = 1
    causal: int = -1
    is_backward: bool = False
    max_q: int = -1
    cumulative: int = -1
    window: int = -1
    num_keys: int = -1
    bottom_right: bool = False
    is_bound: bool = False
    has_mask_type: bool = False


@frozen
class _Sizes:
    """`num` sequences of `s` queries and `t` keys; `is_bound`: at most so many."""

    num: Fraction
    s: int
    t: int
    is_bound: bool


def _formula(layout: _Layout) -> Callable[[OpCall], Work | None]:
    def formula(call: OpCall) -> Work | None:
        q, k, v = (call.tensor(layout.q + index) for index in range(3))
        if q is None or k is None or v is None or not len(q.shape) == len(k.shape) == len(v.shape):
            return None
        if len(q.shape) not in (3, 4):
            return None
        sizes, heads = _sizes(layout, call, q, k), q.shape[-2 if layout.heads_at == 2 or len(q.shape) == 3 else 1]
        d, dv = q.shape[-1], v.shape[-1]
        per_pair = 3 * d + 2 * dv if layout.is_backward else d + dv
        pairs = sizes.num * heads * sizes.s * sizes.t
        is_causal, window = _mask(layout, call)
        part = unmasked_pairs(
            sizes.s, sizes.t, is_causal=bool(is_causal), window=window, bottom_right=layout.bottom_right
        )
        moved = _moved(layout, call, q, k, v)
        is_bound = sizes.is_bound or is_causal is None
        repeated = int(2 * pairs * d) if layout.is_backward else 0
        return Work(Kind.CONTRACTION, moved, q.dtype, int(2 * pairs * per_pair), repeated, part, is_bound)

    return formula


def _sizes(layout: _Layout, call: OpCall, q: Tensor, k: Tensor) -> _Sizes:
    if len(q.shape) == 4:
        axis = 1 if layout.heads_at == 2 else 2
        return _Sizes(Fraction(q.shape[0]), q.shape[axis], k.shape[axis], layout.is_bound)
    total = q.shape[0]
    s, t = (call.value(layout.max_q + index) if layout.max_q >= 0 else None for index in range(2))
    if not isinstance(s, int) or not isinstance(t, int) or s <= 0:
        return _Sizes(Fraction(1), total, k.shape[0], True)
    offsets = call.tensor(layout.cumulative) if layout.cumulative >= 0 else None
    num = offsets.numel - 1 if offsets is not None else 0
    return _Sizes(Fraction(total, s), s, t, num * s != total)


def _mask(layout: _Layout, call: OpCall) -> tuple[bool | None, tuple[int, int]]:
    """Return (whether the mask is causal, None if not recorded; how many keys to the left and right a query sees)."""
    window: tuple[Any, Any] = (-1, -1)
    if layout.window >= 0:
        window = call.value(layout.window), call.value(layout.window + 1)
    left, right = (side if isinstance(side, int) else -1 for side in window)
    if layout.causal < 0:
        return False, (left, right)
    is_causal = call.value(layout.causal)
    if layout.has_mask_type and isinstance(is_causal, int):
        return is_causal in (1, 2), (left, right)
    return None if is_causal is None else bool(is_causal), (left, right)


def _moved(layout: _Layout, call: OpCall, q: Tensor, k: Tensor, v: Tensor) -> int:
    """Return bytes: queries, keys, values and the result; their gradients, too, in the backward pass."""
    used = call.tensor(layout.num_keys) if layout.num_keys >= 0 else None
    if used is not None and k.shape and k.shape[0]:  # of a cache only the pages of this batch
        cache = (k.bytes + v.bytes) * min(used.numel, k.shape[0]) // k.shape[0]
    else:
        cache = k.bytes + v.bytes
    result = q.sized(q.numel // max(q.shape[-1], 1) * v.shape[-1])
    return 2 * (total_bytes([q]) + cache + result) if layout.is_backward else total_bytes([q]) + cache + result


def unmasked_pairs(
    s: int, t: int, *, is_causal: bool = False, window: tuple[int, int] = (-1, -1), bottom_right: bool = False
) -> Fraction:
    """Return the part of the s x t pairs of queries and keys that a mask leaves.

    `window`: how many keys before and after its own position a query sees, -1 for all. Positions count from the first
    query and key, or `bottom_right` from the last.
    """
    left, right = window
    if is_causal:
        right = 0 if right < 0 else min(right, 0)
    if (left < 0 and right < 0) or s <= 0 or t <= 0 or s > _LONGEST:
        return Fraction(1)
    position = np.arange(s, dtype=np.int64) + (t - s if bottom_right else 0)
    last = np.minimum(position + right, t - 1) if right >= 0 else np.full(s, t - 1)
    first = np.maximum(position - left, 0) if left >= 0 else np.zeros(s, np.int64)
    return Fraction(int(np.maximum(last - first + 1, 0).sum()), s * t)


_FLASH = _Layout(heads_at=2, causal=8, max_q=5, cumulative=3)
_VARLEN = _Layout(heads_at=2, max_q=5, cumulative=3, causal=9, window=10, bottom_right=True)
_LAYOUTS = {
    "aten::_scaled_dot_product_flash_attention": _Layout(causal=4),
    "aten::_scaled_dot_product_flash_attention_backward": _Layout(q=1, causal=11, is_backward=True),
    "aten::_scaled_dot_product_efficient_attention": _Layout(causal=6),
    "aten::_scaled_dot_product_efficient_attention_backward": _Layout(q=1, causal=11, is_backward=True),
    "aten::_scaled_dot_product_cudnn_attention": _Layout(causal=6),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Layout(q=1, causal=14, is_backward=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _Layout(causal=4),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _Layout(q=1, causal=7, is_backward=True),
    "aten::_scaled_dot_product_fused_attention_overrideable": _Layout(causal=5),
    "aten::_flash_attention_forward": _FLASH,
    "aten::_flash_attention_backward": _Layout(q=1, heads_at=2, causal=11, max_q=8, cumulative=6, is_backward=True),
    "aten::_efficient_attention_forward": _Layout(heads_at=2, causal=9, max_q=6, cumulative=4, has_mask_type=True),
    "aten::_efficient_attention_backward": _Layout(
        q=1, heads_at=2, causal=14, max_q=8, cumulative=6, is_backward=True, has_mask_type=True
    ),
    "flash_attn::_flash_attn_forward": _Layout(heads_at=2, causal=5, window=6, bottom_right=True),
    "flash_attn::_flash_attn_backward": _Layout(
        q=1, heads_at=2, causal=11, window=12, bottom_right=True, is_backward=True
    ),
    "flash_attn::_flash_attn_varlen_forward": _VARLEN,
    "flash_attn::_flash_attn_varlen_backward": _Layout(
        q=1, heads_at=2, max_q=11, cumulative=9, causal=15, window=16, bottom_right=True, is_backward=True
    ),
    "flash_attn_3::fwd": _Layout(heads_at=2, max_q=12, cumulative=7, causal=24, window=25, bottom_right=True),
    "flash_attn_3::bwd": _Layout(
        q=1, heads_at=2, max_q=13, cumulative=9, causal=16, window=17, bottom_right=True, is_backward=True
    ),
    "aiter::mha_batch_prefill": _Layout(
        heads_at=2, max_q=6, cumulative=3, causal=12, window=13, num_keys=5, bottom_right=True
    ),
    "vllm::unified_attention_with_output": _Layout(heads_at=2, is_bound=True, bottom_right=True),
    "customflash::custom_flash_aligned": _Layout(),
}
ATTENTIONS = {name: _formula(layout) for name, layout in _LAYOUTS.items()}
"""Formula of each fused attention op, by its name in a trace."""
