"""Do both sides multiply tensors of the same shapes and types? If not, they do not do the same work."""

from __future__ import annotations

from math import prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.model import Category, Trace

__all__ = ["shapes_apart", "types_apart"]

_HEAVY = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_scaled_mm",
    "aten::convolution",
    "aten::scaled_dot_product_attention",
)


_TYPES = {"double": "float64", "float": "float32", "half": "float16"}


def types_apart(a: Trace, b: Trace) -> str:
    """`dtype: aten::mm of float32 against bfloat16`, where both sides have an op and never with inputs of the same
    types; "" where they agree, or where a trace does not tell.
    """
    ours, theirs = _types(a), _types(b)
    apart = sorted(op for op in ours if op in theirs and not ours[op] & theirs[op])
    if not apart:
        return ""
    told = [" or ".join(sorted(side[apart[0]])) for side in (ours, theirs)]
    more = f", and {len(apart) - 1} more" if len(apart) > 1 else ""
    return f"dtype: {apart[0]} of {told[0]} against {told[1]}{more}"


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
    found: dict[str, set[tuple[int, str]]] = {}
    for op, text in _told(trace, trace.events.shapes):
        if sized := _sized(text):
            found.setdefault(op, set()).add(sized)
    return found


def _types(trace: Trace) -> dict[str, set[str]]:
    """Types of the first input of each heavy op."""
    found: dict[str, set[str]] = {}
    for op, text in _told(trace, trace.events.types):
        if kind := _first_type(text):
            found.setdefault(op, set()).add(kind)
    return found


def _told(trace: Trace, column: NDArray[np.int32]) -> list[tuple[str, str]]:
    """(op, what the column says of its inputs) of the heavy ops, each once."""
    events = trace.events
    wanted = [number for number, text in enumerate(events.strings) if text in _HEAVY]
    rows = events.rows(Category.CPU_OP)
    rows = rows[np.isin(events.name[rows], wanted) & (column[rows] >= 0)]
    pairs = np.unique(np.column_stack([events.name[rows], column[rows]]), axis=0).tolist()
    return [(events.strings[name], events.strings[text]) for name, text in pairs]


def _first_type(text: str) -> str:
    """`bfloat16` of `["c10::BFloat16", ...]`; "" for what cannot be read."""
    try:
        kinds = msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:
        return ""
    kind = kinds[0].removeprefix("c10::").lower() if kinds else ""
    return _TYPES.get(kind, kind)


def _sized(text: str) -> tuple[int, str] | None:
    """Elements of all inputs together, and their shapes without what is no tensor; None for what cannot be read."""
    try:
        dims = [shape for shape in msgspec.json.decode(text, type=list[list[int]]) if shape]
    except msgspec.MsgspecError:
        return None
    return (sum(map(prod, dims)), str(dims)) if dims else None
