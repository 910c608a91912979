"""One call of an op as its row of the trace describes it: tensors with shape, dtype and strides, and values."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec

from traceq.facts.roofline.dtypes import ITEM_BYTES, dtype_of_text, promoted
from traceq.frozen import frozen

_LONGEST_VALUE = 4096
"""Characters of a value up to which it is parsed; only lists of sizes are of interest."""


@frozen
class Tensor:
    """A tensor of an op. `dtype` as in ITEM_BYTES, "" if unknown; `strides` None if they were not recorded."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    @property
    def numel(self) -> int:
        """Number of its elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of memory that it occupies: a dimension of stride 0 counts once. An unknown dtype has none."""
        sizes = self.shape
        if self.strides is not None and len(self.strides) == len(sizes):
            sizes = tuple(1 if stride == 0 else size for size, stride in zip(sizes, self.strides, strict=True))
        return int(prod(sizes) * ITEM_BYTES.get(self.dtype, 0.0))

    def sized(self, numel: int) -> int:
        """Return the bytes of so many of its elements."""
        return int(numel * ITEM_BYTES.get(self.dtype, 0.0))


@frozen
class OpCall:
    """Inputs of one call: each a tensor, a tuple of tensors for a list, or None; `values` None if not recorded.

    `partner` are the inputs of the call that tells what this one does not: of the backward op of a convolution whose
    stride was not recorded, of the parent of a part of a backward op.
    """

    name: str
    inputs: tuple[Tensor | tuple[Tensor, ...] | None, ...]
    values: tuple[Any, ...] | None = None
    partner: tuple[Tensor | tuple[Tensor, ...] | None, ...] = ()

    def tensor(self, index: int) -> Tensor | None:
        """Return the input at a position if it is a tensor, else None."""
        entry = self.inputs[index] if index < len(self.inputs) else None
        return entry if isinstance(entry, Tensor) else None

    def value(self, index: int) -> Any:
        """Return the value of an input that is no tensor; None where it was not recorded, or is None."""
        return self.values[index] if self.values is not None and index < len(self.values) else None

    def list_of(self, index: int) -> tuple[Tensor, ...]:
        """Return the tensors of a list at a position; none if there is no list."""
        entry = self.inputs[index] if index < len(self.inputs) else None
        return entry if isinstance(entry, tuple) else ()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, those in lists among them."""
        flat: list[Tensor] = []
        for each in self.inputs:
            flat.extend(each if isinstance(each, tuple) else (each,) if each is not None else ())
        return tuple(flat)


def parse_call(
    name: str, shapes: str, types: str = "", strides: str = "", values: str = "", *, partner: str = "", dtype: str = ""
) -> OpCall | None:
    """Return the call that these texts of a trace describe; None where the shapes cannot be read.

    `dtype` is that of tensors in lists, which a trace never records, unless another tensor of the call tells.
    """
    dims, kinds, steps = _decoded(shapes), _decoded(types), _decoded(strides)
    if dims is None:
        return None
    written = [kind if isinstance(kind, str) else "" for kind in kinds or ()]
    dtypes = [dtype_of_text(text) for text in written]
    in_lists = dtype or promoted([each for each in dtypes if each.startswith(("float", "bfloat"))])
    inputs = _inputs(dims, dtypes, steps or (), in_lists)
    parsed = _decoded(values)
    partner_dims = _decoded(partner) or ()
    return OpCall(
        name=name,
        inputs=inputs,
        values=None if parsed is None else tuple(map(_value, parsed)),
        partner=_inputs(partner_dims, ["float32"] * len(partner_dims), (), ""),
    )


def _decoded(text: str) -> list[Any] | None:
    """Return a JSON list; None for anything else."""
    try:
        entry = msgspec.json.decode(text) if text else None
    except (msgspec.MsgspecError, RecursionError):
        return None
    return entry if isinstance(entry, list) else None


def _inputs(
    dims: Sequence[Any], dtypes: Sequence[str], strides: Sequence[Any], in_lists: str
) -> tuple[Tensor | tuple[Tensor, ...] | None, ...]:
    inputs: list[Tensor | tuple[Tensor, ...] | None] = []
    for index, shape in enumerate(dims):
        dtype = dtypes[index] if index < len(dtypes) else ""
        step = strides[index] if index < len(strides) else None
        if isinstance(shape, list) and shape and all(isinstance(each, list) for each in shape):
            inner = step if isinstance(step, list) and len(step) == len(shape) else [None] * len(shape)
            each_tensor = (_tensor(each, in_lists, one) for each, one in zip(shape, inner, strict=True))
            inputs.append(tuple(tensor for tensor in each_tensor if tensor is not None))
        elif dtype or shape:
            inputs.append(_tensor(shape, dtype, step))
        else:
            inputs.append(None)
    return tuple(inputs)


def _tensor(shape: Any, dtype: str, strides: Any) -> Tensor | None:
    if not _are_sizes(shape):
        return None
    return Tensor(tuple(shape), dtype, tuple(strides) if _are_sizes(strides) else None)


def _are_sizes(entry: Any) -> bool:
    return isinstance(entry, list) and all(type(size) is int and size >= 0 for size in entry)


def _value(text: Any) -> Any:
    """Return what a Python literal says: `[False, True]`, `1`, `0.`; None for other text, as an empty one."""
    if not isinstance(text, str) or not text or len(text) > _LONGEST_VALUE:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
