"""Do both sides multiply tensors of the same shapes? If not, they do not do the same work."""

from __future__ import annotations

from math import prod

import msgspec
import numpy as np

from traceq.model import Category, Trace

__all__ = ["shapes_apart"]

_HEAVY = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_scaled_mm",
    "aten::convolution",
    "aten::scaled_dot_product_attention",
)


def shapes_apart(a: Trace, b: Trace) -> str:
    """`shapes: the largest aten::mm is [[8, 64], [64, 64]] against [[16, 64], [64, 64]]`, of the op with the largest
    inputs; "" where they agree, or where a trace does not tell.

    An op differs if both sides have it and never with the same shapes: another batch or length changes all of them,
    while a change of the program may well replace one.
    """
    ours, theirs = _inputs(a), _inputs(b)
    apart = [op for op in ours if op in theirs and not ours[op] & theirs[op]]
    if not apart:
        return ""
    op = max(apart, key=lambda name: max(ours[name] | theirs[name]))
    rest = len(apart) - 1
    more = f", and {rest} more {'op differs' if rest == 1 else 'ops differ'}" if rest else ""
    return f"shapes: the largest {op} is {max(ours[op])[1]} against {max(theirs[op])[1]}{more}"


def _inputs(trace: Trace) -> dict[str, set[tuple[int, str]]]:
    """(elements, shapes) of all inputs of each heavy op."""
    events = trace.events
    wanted = [number for number, text in enumerate(events.strings) if text in _HEAVY]
    rows = events.rows(Category.CPU_OP)
    rows = rows[np.isin(events.name[rows], wanted) & (events.shapes[rows] >= 0)]
    found: dict[str, set[tuple[int, str]]] = {}
    for name, shapes in np.unique(np.column_stack([events.name[rows], events.shapes[rows]]), axis=0).tolist():
        if sized := _sized(events.strings[shapes]):
            found.setdefault(events.strings[name], set()).add(sized)
    return found


def _sized(text: str) -> tuple[int, str] | None:
    """Elements of all inputs together, and their shapes without what is no tensor; None for what cannot be read."""
    try:
        dims = [shape for shape in msgspec.json.decode(text, type=list[list[int]]) if shape]
    except msgspec.MsgspecError:
        return None
    return (sum(map(prod, dims)), str(dims)) if dims else None
