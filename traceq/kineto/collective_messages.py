"""Message sizes of collectives, from their arguments or, without those, from the shapes of their inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from math import prod
from typing import Any, ClassVar

import msgspec
import numpy as np

from traceq.kineto.raw_events import Interner, RawArgs
from traceq.model import Messages, side_table

COUNT_LIMIT = 2**56
"""Counts of a message from here on are invalid: below it 8 bytes each still add up in int64."""
_decode_list = msgspec.json.Decoder(list[Any]).decode
_DTYPES = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "c10::half": "float16",
    "bfloat16": "bfloat16",
    "c10::bfloat16": "bfloat16",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "char": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
    "bool": "bool",
}


@dataclass(slots=True, eq=False)
class MessageRows:
    """Builder of the rows of Messages."""

    PREFIXES: ClassVar[tuple[str, ...]] = ("nccl:", "gloo:", "hccl:", "xccl:", "c10d::")

    _rows: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, row: int, event: str, args: RawArgs, strings: Interner) -> None:
        """Add one event that is a collective or belongs to one."""
        name = "" if args.collective is None else str(args.collective)
        elements_in, elements_out = _to_count(args.elements_in), _to_count(args.elements_out)
        dtype = "" if args.dtype is None else str(args.dtype)
        if args.collective is None:
            elements_in, dtype = _from_shapes(event, args)
        self._rows.append(
            (
                row,
                strings[name] if name else -1,
                strings[dtype_name(dtype)] if dtype else -1,
                strings[str(args.group)] if args.group is not None else -1,
                strings[str(args.ranks)] if args.ranks is not None else -1,
                elements_in,
                elements_out,
                _sum(args.splits_in),
                _sum(args.splits_out),
                _to_count(args.group_size),
                _to_count(args.message_sequence),
            )
        )

    def build(self) -> Messages:
        """Return the rows as columns."""
        return side_table(Messages, np.array(self._rows, np.int64).reshape(-1, 11))


def dtype_name(text: str) -> str:
    """Return torch's name of a dtype: `bfloat16` for `BFloat16`, `c10::BFloat16` and the like."""
    return _DTYPES.get(text.lower(), text.lower())


def _to_count(value: Any) -> int:
    """Return a count in [0, COUNT_LIMIT), -1 for anything else."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if 0 <= number < COUNT_LIMIT else -1


def _sum(splits: Any) -> int:
    """Return the sum of split sizes; -1 for none, and for the lists of more than 30 that the profiler cuts short."""
    try:
        sizes = _decode_list(splits) if isinstance(splits, str) else splits
    except (msgspec.DecodeError, RecursionError):
        return -1
    is_sound = isinstance(sizes, list) and sizes and all(type(size) is int and size >= 0 for size in sizes)
    return _to_count(sum(sizes)) if is_sound else -1


def _from_shapes(event: str, args: RawArgs) -> tuple[int, str]:
    """Return (elements, dtype) of a call of which only input shapes were recorded; (-1, "") without usable shapes.

    A backend's annotation lists the tensors it moves; a c10d op lists output and input, of which the larger counts.
    """
    try:
        dims, types = _decode_list(args.dims), _decode_list(args.types)
        sizes = [_elements(shape) for shape, kind in zip_longest(dims, types) if shape or _is_number(shape, kind)]
    except (msgspec.DecodeError, RecursionError, TypeError, ValueError):
        return -1, ""
    if not sizes:
        return -1, ""
    moved = max(sizes) if event.startswith("c10d::") else sum(sizes)
    dtype = next((t for t in types if isinstance(t, str) and t.lower() in _DTYPES), "")
    return _to_count(moved), dtype


def _is_number(shape: Any, kind: Any) -> bool:
    """Return whether an input is a 0-d tensor; non-tensor arguments have no shape either, but no element type."""
    return shape == [] and isinstance(kind, str) and kind.lower() in _DTYPES


def _elements(shape: Any) -> int:
    """Return the number of elements of a shape, or of a list of shapes."""
    if any(isinstance(part, list) for part in shape):
        return sum(_elements(part) for part in shape)
    return prod(map(int, shape))
