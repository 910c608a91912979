"""Encode many protocol buffer messages of one shape at once, in columns: message i has row i of every field.

The wire format (protobuf.dev, "Encoding"): a field is its key, `number << 3 | type`, and a value; integers are varints,
seven bits a byte, the lowest first; a nested message is its length and its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen

__all__ = ["Field", "delimited", "fixed64", "join", "varint"]

_VARINT, _FIXED64, _DELIMITED = 0, 1, 2


@frozen(eq=False)
class Field:
    """Bytes of one field in N messages: `data` uint8[N, W], of which the first `size` int64[N] of each row are used."""

    data: NDArray[np.uint8]
    size: NDArray[np.int64]


def varint(number: int, values: NDArray[np.int64], present: NDArray[np.bool_] | None = None) -> Field:
    """Encode an integer field, negative values in ten bytes; `present` bool[N] is False where it is omitted."""
    return _present(_keyed(number, _VARINT, _varints(values)), present)


def fixed64(number: int, values: NDArray[np.int64], present: NDArray[np.bool_] | None = None) -> Field:
    """Encode a field of eight bytes, the lowest first."""
    data = np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)
    return _present(_keyed(number, _FIXED64, Field(data, np.full(len(values), 8))), present)


def delimited(number: int, fields: Sequence[Field], present: NDArray[np.bool_] | None = None) -> list[Field]:
    """Encode a nested message of these fields; returns the fields to use in their place."""
    inside = [_present(field, present) for field in fields]
    size: NDArray[np.int64] = np.sum([field.size for field in inside], axis=0)
    return [_present(_keyed(number, _DELIMITED, _varints(size)), present), *inside]


def join(fields: Iterable[Field]) -> bytes:
    """Return the messages, concatenated."""
    columns = list(fields)
    data = np.concatenate([field.data for field in columns], axis=1)
    counts = [np.arange(field.data.shape[1]) < field.size[:, None] for field in columns]
    return data[np.concatenate(counts, axis=1)].tobytes()


def _varints(values: NDArray[np.int64]) -> Field:
    rest = values.astype(np.uint64)
    width = max(1, -(-int(rest.max(initial=0)).bit_length() // 7))
    data, size = np.empty((len(rest), width), np.uint8), np.ones(len(rest), np.int64)
    for index in range(width):
        data[:, index] = rest & np.uint64(0x7F)
        rest >>= np.uint64(7)
        more = rest > 0
        data[more, index] |= 0x80
        size += more
    return Field(data, size)


def _keyed(number: int, kind: int, value: Field) -> Field:
    key = _varints(np.array([number << 3 | kind])).data
    keys = np.broadcast_to(key, (len(value.size), key.shape[1]))
    return Field(np.concatenate([keys, value.data], axis=1), value.size + key.shape[1])


def _present(field: Field, present: NDArray[np.bool_] | None) -> Field:
    return field if present is None else Field(field.data, np.where(present, field.size, 0))
