"""Kernels of the layers of two models of which compiled code or CUDA graphs leave no ops: are these other layers?

Inductor fuses norms with what is around them, so it is products and attention that tell.
"""

from __future__ import annotations

import re

import numpy as np

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.timeline.steps import steps
from traceq.intervals import span_index
from traceq.model import Trace
from traceq.units import Unit, format_value

__all__ = ["layer_difference"]

_FORWARD, _BACKWARD, _PRODUCT = "forward kernels of attention", "backward kernels of attention", "products"
_KERNELS = {
    _FORWARD: re.compile(
        r"flash_fwd_(?!\w*combine)\w*kernel|FlashAttnFwdSm|fmha_cutlassF|fmha_fwd|attn_fwd|sdpa\w*fprop|"
        r"^triton_tem_\w*flex_attention(?!_backward)|"
        r"paged_attention_(?!\w*reduce)\w*kernel|kernel_unified_attention|fmhaSm\d+\w*Kernel|"
        r"Batch(Decode|Prefill)With(Paged|Ragged)KVCache\w*Kernel"
    ),
    _BACKWARD: re.compile(
        r"flash_bwd_dq_dk_dv\w*kernel|FlashAttnBwdSm|fmha_cutlassB|fmha_bwd|attn_bwd|sdpa\w*bprop|"
        r"^triton_tem_\w*flex_attention_backward"
    ),
    _PRODUCT: re.compile(
        r"^(?!.*(flash|fmha|sdpa|attention|implicit|wgrad|dgrad|fprop|split_?k|reduce))"
        r".*(gemm|nvjet|^Cijk_|^triton_tem_\w*mm|cutlass_\d+_(tensorop|simt|wmma))",
        re.IGNORECASE,
    ),
}
"""One kernel of each call of attention, and products of matrices."""
_APART, _SAME = 1.1, 0.01
"""Ratio of their numbers from which they differ, and by how little ratios differ that are the same."""


def layer_difference(a: Trace, b: Trace) -> str:
    """Return `layers: 12 forward kernels of attention against 24, and 147 products against 291` per step; else "".

    One side has more of each kind, of attention as many times forward and backward. Where all are twice as often, or
    another whole number of times, one side accumulates gradients, or has more passes, as has a whole trace
    against steps; inference may have any number of passes, and only its marked steps can be compared.
    """
    ours, theirs = _per_step(a), _per_step(b)
    if not all(each[kind] for each in (ours, theirs) for kind in (_FORWARD, _PRODUCT)):
        return ""
    trains = ours[_BACKWARD] > 0
    marked = [steps(trace).marked for trace in (a, b)]
    if trains != (theirs[_BACKWARD] > 0) or marked[0] != marked[1] or not (trains or marked[0]):
        return ""
    ratios = {kind: theirs[kind] / num for kind, num in ours.items() if num}
    attention = [ratio for kind, ratio in ratios.items() if kind != _PRODUCT]
    is_more, is_less = min(ratios.values()) > _APART, max(ratios.values()) < 1 / _APART
    if not (is_more or is_less) or not _is_same(attention):
        return ""
    times = max(attention[0], 1 / attention[0])
    if _is_same([*ratios.values()]) and (not trains or _is_same([times, round(times)])):
        return ""
    first, last = (_against(ours[kind], theirs[kind], kind) for kind in (_FORWARD, _PRODUCT))
    return f"layers: {first}, and {last}"


def _per_step(trace: Trace) -> dict[str, float]:
    """Return how many kernels of each kind begin in a mean counted step."""
    work, windows = device_work(trace), steps(trace).window[steps(trace).counted]
    rows = work.rows[np.flatnonzero(span_index(windows, work.start) >= 0)]
    return {kind: int(matching(trace.events, rows, of).sum()) / max(len(windows), 1) for kind, of in _KERNELS.items()}


def _is_same(ratios: list[float]) -> bool:
    return max(ratios) <= (1 + _SAME) * min(ratios)


def _against(num_a: float, num_b: float, kind: str) -> str:
    return f"{format_value(num_a, Unit.MEAN)} {kind} against {format_value(num_b, Unit.MEAN)}"
