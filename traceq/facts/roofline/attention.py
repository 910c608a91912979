"""FLOPs of fused attention: forward 2 b h s t (d + dv), backward 2 b h s t (3 d + 2 dv) with the scores computed anew.

As in torch.utils.flop_counter; h are the query heads, as keys and values of grouped heads are used repeatedly.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from traceq.facts.roofline.op_calls import OpCall, Tensor
from traceq.facts.roofline.work import Kind, Work, total_bytes
from traceq.frozen import frozen

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
