"""Typed values as bytes, without pickle, as cache files are in folders that others may write to."""

from __future__ import annotations

import zlib
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np

__all__ = ["Damaged", "pack", "unpack"]

T = TypeVar("T")
_NUMBERS = "biuf"


class Damaged(Exception):
    """Bytes that `pack` did not write, or not of this type."""


def pack(value: object) -> bytes:
    """Return as bytes a dataclass, or any other type that msgspec supports, with numpy arrays in it."""
    return zlib.compress(msgspec.msgpack.encode(value, enc_hook=_encode_numpy), 1)


def unpack(data: bytes, type_: type[T]) -> T:
    """Return the value that `pack` was called with. Raises Damaged."""
    try:
        return msgspec.msgpack.decode(zlib.decompress(data), type=type_, dec_hook=_decode_array)
    except (zlib.error, msgspec.MsgspecError, ValueError, TypeError, RecursionError) as fault:
        raise Damaged(str(fault)) from fault


def _encode_numpy(value: object) -> object:
    if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(type(value).__name__)


def _decode_array(type_: type, encoded: Any) -> object:
    if get_origin(type_) is not np.ndarray:
        raise NotImplementedError(str(type_))
    dtype, shape, data = encoded
    if np.dtype(dtype).kind not in _NUMBERS:
        raise ValueError(f"no numeric dtype: {dtype}")
    return np.frombuffer(data, dtype).reshape(shape).copy()
