"""Whether both sides multiply as many tensors of the same shapes and dtypes; if not, they do other work."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.compare.sentences import LIKEWISE, WHY_NOT
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import op_calls_per_step, steps
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace
from traceq.units import Unit, format_value

_HEAVY = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_grouped_mm",
    "aten::_scaled_mm",
    "aten::_scaled_mm_v2",
    "aten::_scaled_grouped_mm",
    "aten::_scaled_grouped_mm_v2",
    "aten::convolution",
    "aten::scaled_dot_product_attention",
)
_PRODUCTS = ("aten::mm", "aten::addmm")
_SCALED = (
    ("aten::mm", ("aten::_scaled_mm", "aten::_scaled_mm_v2")),
    ("aten::_grouped_mm", ("aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2")),
)
"""A product and those of 8 bits or fewer that take its place, which have scales."""
_FACTORS = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::convolution"), 2),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm"), 3),
}
"""Inputs of an op that say what it computes: compiled code passes its output as another one, and adds a bias later."""
_WEIGHTS = {
    **dict.fromkeys(("aten::linear", "aten::convolution", "aten::batch_norm"), 1),
    **dict.fromkeys(("aten::addmm", "aten::layer_norm", "aten::group_norm", "aten::rms_norm"), 2),
    "aten::embedding": 0,
}
"""Which input of an op is a weight of the model: its shape is the same for any batch."""
_LEAST_WEIGHTS = 2
"""Shapes of weights on each side below which a side may show only a part of its model."""
_MANY_MORE = 1.5
"""Multiple of the calls of each such op from which a side does more of the same work."""
_DTYPES = {"double": "float64", "float": "float32", "half": "float16"}


def dtype_difference(a: Trace, b: Trace) -> str:
    """Return `dtype: aten::mm of float32 against bfloat16`, or "".

    An op differs if both sides have it and never with the same dtype, or if one side alone has it scaled, `dtype:
    aten::_grouped_mm of bfloat16 against aten::_scaled_grouped_mm of float8_e4m3fn`; "" where dtypes agree or were not
    recorded.
    """
    ours, theirs = _dtypes(a), _dtypes(b)
    apart = [(op, op) for op in sorted(ours) if op in theirs and not ours[op] & theirs[op]]
    apart += _scaled_apart(ours, theirs) + [(op, plain) for plain, op in _scaled_apart(theirs, ours)]
    if not apart:
        return ""
    (first, second), more = apart[0], f", and {len(apart) - 1} more" if len(apart) > 1 else ""
    dtypes = [" or ".join(sorted(dtypes)) for dtypes in (ours[first], theirs[second])]
    other = "" if first == second else f"{second} of "
    return f"dtype: {first} of {dtypes[0]} against {other}{dtypes[1]}{more}"


def _scaled_apart(plain: Mapping[str, set[str]], scaled: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Return (product, scaled product) where the first side has the product alone, and the second side scales it."""
    return [
        (op, of_op)
        for op, all_scaled in _SCALED
        for of_op in all_scaled
        if op in plain and of_op in scaled and not plain.keys() & set(all_scaled)
    ]


def shape_difference(a: Trace, b: Trace) -> str:
    """Return `shapes: the largest aten::mm is [[8, 64], [64, 64]] against [[16, 64], [64, 64]]`, or "".

    Names the op with the largest inputs; "" where shapes agree or were not recorded. An op differs if both sides have
    it and never with the same shapes: another batch size or sequence length changes all of them, while a change of the
    program may replace one, or multiply by another op: matrices where half of the products of both sides are the same.
    Where the sides have no product in common, as in CUDA graphs, the largest of all ops tells.
    """
    ours, theirs = _inputs(a), _inputs(b)
    if not ours.keys() & theirs.keys():
        ours, theirs = _largest_common(_inputs_of_all(a), _inputs_of_all(b))
    apart = [op for op in ours if op in theirs and not ours[op] & theirs[op]]
    products = _products(ours), _products(theirs)
    if 2 * len(products[0] & products[1]) >= max(min(map(len, products)), 1):
        apart = [op for op in apart if op not in _PRODUCTS]
    if not apart:
        return ""
    op = max(apart, key=lambda name: max(ours[name] | theirs[name]))
    reason = WHY_NOT["shapes"].format(op=op, a=max(ours[op])[1], b=max(theirs[op])[1])
    return LIKEWISE.format(reason=reason, num=len(apart) - 1) if len(apart) > 1 else reason


def weight_difference(a: Trace, b: Trace) -> str:
    """Return `weights: of 20 shapes against 6, none is the same, such as [64, 3, 7, 7] against [512, 512]`, or "".

    Names the largest on each side. A change of a model leaves some of its weights as they are: norms, if all products
    are sharded. "" where fewer than two were recorded on a side.
    """
    ours, theirs = _weights(a), _weights(b)
    if min(len(ours), len(theirs)) < _LEAST_WEIGHTS or ours & theirs:
        return ""
    largest = [list(max(each, key=lambda shape: (prod(shape), shape))) for each in (ours, theirs)]
    return WHY_NOT["weights"].format(num_a=len(ours), num_b=len(theirs), a=largest[0], b=largest[1])


@once_per_trace
def _weights(trace: Trace) -> set[tuple[int, ...]]:
    """Return the distinct shapes of weights; of a matrix sorted, as an op may take it transposed."""
    shapes = set()
    for op, text in _recorded(trace, trace.events.shapes, _WEIGHTS):
        if (inputs := _shapes(text)) and len(inputs) > _WEIGHTS[op] and (shape := inputs[_WEIGHTS[op]]):
            shapes.add(tuple(sorted(shape) if len(shape) == 2 else shape))
    return shapes


def have_same_work(a: Trace, b: Trace) -> bool:
    """Return whether calls of the same ops can be expected to take as long: no other shapes or dtypes are recorded."""
    return not (shape_difference(a, b) or dtype_difference(a, b))


def calls_difference(a: Trace, b: Trace) -> str:
    """Return `calls: aten::addmm runs 14 times per step instead of 7, and 2 more ops likewise`, or "".

    That is where one side runs each op of at least two much more often: it trains on more samples in a step, or
    accumulates gradients. Recomputation repeats only the ops of the forward pass. A whole trace may hold several steps.
    """
    ours, theirs = _calls(a), _calls(b)
    if steps(a).marked != steps(b).marked or len(ours) < 2 or ours.keys() != theirs.keys():
        return ""
    ratios = [theirs[op] / ours[op] for op in ours]
    if not (min(ratios) >= _MANY_MORE or max(ratios) <= 1 / _MANY_MORE):
        return ""
    op = max(ours, key=lambda name: ours[name] + theirs[name])
    counts = [format_value(side[op], Unit.MEAN) for side in (theirs, ours)]
    per = "per step" if steps(a).marked else "in the trace"
    reason = WHY_NOT["calls"].format(op=op, b=counts[0], per=per, a=counts[1])
    return LIKEWISE.format(reason=reason, num=len(ours) - 1)


def _calls(trace: Trace) -> dict[str, float]:
    """Return how often each heavy op runs in a counted step."""
    return {op: num for op, num in op_calls_per_step(trace).items() if op in _HEAVY}


def _products(inputs: _Inputs) -> set[tuple[int, ...]]:
    """Return the products of two matrices, by rows, columns and what is summed in any order: with a bias or without."""
    shapes = {text for op in _PRODUCTS for _, text in inputs.get(op, ())}
    factors = [[shape for shape in _shapes(text) if len(shape) == 2][-2:] for text in shapes]
    return {tuple(sorted((*first, second[-1]))) for first, second in (pair for pair in factors if len(pair) == 2)}


_Inputs = dict[str, set[tuple[int, str]]]
"""Distinct (elements, shapes) of all inputs, by op."""


def _largest_common(ours: _Inputs, theirs: _Inputs) -> tuple[_Inputs, _Inputs]:
    """Return the op with the largest inputs of those that both sides have, alone."""
    op = max(ours.keys() & theirs.keys(), key=lambda name: (max(ours[name] | theirs[name]), name), default=None)
    return ({}, {}) if op is None else ({op: ours[op]}, {op: theirs[op]})


@once_per_trace
def _inputs(trace: Trace) -> _Inputs:
    """Return the inputs of each heavy op."""
    return _inputs_of(trace, _HEAVY)


@once_per_trace
def _inputs_of_all(trace: Trace) -> _Inputs:
    """Return the inputs of each op."""
    return _inputs_of(trace, trace.events.strings)


def _inputs_of(trace: Trace, ops: Collection[str]) -> _Inputs:
    inputs: _Inputs = {}
    for op, text in _recorded(trace, trace.events.shapes, ops):
        if sized := _sized(text, _FACTORS.get(op)):
            inputs.setdefault(op, set()).add(sized)
    return inputs


@once_per_trace
def _dtypes(trace: Trace) -> dict[str, set[str]]:
    """Return the dtypes of the first input of each heavy op."""
    dtypes: dict[str, set[str]] = {}
    for op, text in _recorded(trace, trace.events.types, _HEAVY):
        if dtype := _first_dtype(text):
            dtypes.setdefault(op, set()).add(dtype)
    return dtypes


def _recorded(trace: Trace, column: NDArray[np.int32], ops: Collection[str]) -> list[tuple[str, str]]:
    """Return the distinct (op, text in the column) of some ops."""
    events, rows = trace.events, _rows_of(trace, column, ops)
    num = len(events.strings)
    pairs = sorted_unique(events.name[rows].astype(np.int64) * num + column[rows]).tolist()
    return [(events.strings[pair // num], events.strings[pair % num]) for pair in pairs]


def _rows_of(trace: Trace, column: NDArray[np.int32], ops: Collection[str]) -> NDArray[np.int64]:
    """Return the rows of some ops that have a text in the column."""
    events, wanted = trace.events, set(ops)
    names = [number for number, text in enumerate(events.strings) if text in wanted]
    rows = events.rows(Category.CPU_OP)
    return np.asarray(rows[np.isin(events.name[rows], names) & (column[rows] >= 0)])


def _first_dtype(text: str) -> str:
    """Return `bfloat16` for `["c10::BFloat16", ...]`; "" for unreadable text."""
    try:
        dtypes = msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:
        return ""
    dtype = dtypes[0].removeprefix("c10::").lower() if dtypes else ""
    return _DTYPES.get(dtype, dtype)


def _sized(text: str, num: int | None = None) -> tuple[int, str] | None:
    """Return (elements of the first `num` inputs, shapes of those that are tensors); None for unreadable text."""
    dims = [shape for shape in _shapes(text)[:num] if shape]
    return (sum(map(prod, dims)), str(dims)) if dims else None


def _shapes(text: str) -> list[list[int]]:
    """Return the shape of each input, [] of one that is no tensor; no input for unreadable text."""
    try:
        return msgspec.json.decode(text, type=list[list[int]])
    except msgspec.MsgspecError:
        return []
