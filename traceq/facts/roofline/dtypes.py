"""Element sizes of dtypes, by the names that traces give them."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
