"""Calls of ops as their events describe them: tensors and dtypes; and what one call has to do: FLOPs and bytes."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from enum import IntEnum
from fractions import Fraction
from math import prod
from typing import Any

import msgspec

from traceq.frozen import frozen

ITEM_BYTES = {
    "float64": 8.0,
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "float8": 1.0,
    "float4": 1.0,
    "complex64": 8.0,
    "complex128": 16.0,
    "int64": 8.0,
    "int32": 4.0,
    "int16": 2.0,
    "int8": 1.0,
    "uint8": 1.0,
    "bool": 1.0,
}
"""Bytes of an element; an element of `float4` as torch stores it is two numbers."""

_TEXTS = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "bfloat16": "bfloat16",
    "complex<float>": "complex64",
    "complex<double>": "complex128",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
}
_CODES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16", 23: "float8", 24: "float8", 25: "float8",
    26: "float8", 44: "float8", 45: "float4",
}  # fmt: skip
_ORDER = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float4", "float8", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128",
]  # fmt: skip
_OPAQUE = re.compile(r"OpaqueType<(\d+)")
_OF_SIZE = {"1": "uint8", "2": "int16", "4": "int32", "8": "int64"}
_IN_KERNEL = (
    (re.compile(r"BFloat16|bf16", re.IGNORECASE), "bfloat16"),
    (re.compile(r"\bHalf\b|\bhalf\b|_f16\b|fp16"), "float16"),
    (re.compile(r"\bdouble\b"), "float64"),
    (re.compile(r"\bfloat\b|_f32\b|fp32"), "float32"),
)


def dtype_of_text(text: str) -> str:
    """Return `bfloat16` for `c10::BFloat16`; "" for what is no dtype of a tensor, as `Scalar` and `TensorList`."""
    name = text.removeprefix("c10::").lower()
    if name.startswith("float8"):
        return "float8"
    if name.startswith("float4"):
        return "float4"
    return _TEXTS.get(name, "")


def dtype_of_code(code: object) -> str:
    """Return the dtype of a number of c10::ScalarType, as ops get it for `dtype=`; "" for anything else."""
    return _CODES.get(code, "") if isinstance(code, int) and not isinstance(code, bool) else ""


def dtype_in_kernel(name: str) -> str:
    """Return the first dtype that a kernel's name shows; "" where it shows none.

    A kernel that only moves elements shows their size: an integer of that size.
    """
    if opaque := _OPAQUE.search(name):
        return _OF_SIZE.get(opaque[1], "")
    return next((dtype for pattern, dtype in _IN_KERNEL if pattern.search(name)), "")


def promoted(dtypes: Sequence[str]) -> str:
    """Return the dtype of the result of an elementwise op of tensors of these dtypes; "" without any."""
    named = [dtype for dtype in dtypes if dtype]
    both = {"float16", "bfloat16"} <= set(named)
    return "float32" if both else max(named, key=_ORDER.index, default="")


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


class Kind(IntEnum):
    """What the model of a call rests on."""

    CONTRACTION = 2
    """FLOPs of a matrix product, convolution or attention; bytes of its operands and results."""
    BYTES = 1
    """Bytes that the op must read and write, each element once."""
    ARGUMENTS = 0
    """Bytes of all arguments of a kernel of which nothing else is known: of a view they are too many."""


@frozen
class Work:
    """Work of one call. FLOPs are those of contractions: 2 per multiplication and addition of two elements.

    `flops` counts masked pairs of an attention, and its scores in the backward pass, which are computed anew:
    `repeated` FLOPs; `unmasked` is the part of the pairs that a causal mask or a window leaves. `bytes` are compulsory:
    every element moved once. `dtype` of the operands. `is_bound`: at most so many FLOPs, as lengths are not recorded.
    """

    kind: Kind
    bytes: int
    dtype: str = ""
    flops: int = 0
    repeated: int = 0
    unmasked: Fraction = Fraction(1)
    is_bound: bool = False

    @property
    def executed(self) -> int:
        """FLOPs that the device executes: without masked pairs."""
        return int(self.flops * self.unmasked)

    @property
    def model(self) -> int:
        """FLOPs that the model needs: without masked pairs and what is computed twice."""
        return int((self.flops - self.repeated) * self.unmasked)


def total_bytes(tensors: Sequence[Tensor | None]) -> int:
    """Return the bytes of these tensors together; None has none."""
    return sum(tensor.bytes for tensor in tensors if tensor is not None)
