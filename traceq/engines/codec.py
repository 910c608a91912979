"""What one rank leaves as bytes, by its type: no pickle, as caches lie beside runs that others may write to."""

from __future__ import annotations

import zlib
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np

__all__ = ["Damaged", "pack", "unpack"]

T = TypeVar("T")
_NUMBERS = "biuf"


class Damaged(Exception):
    """Bytes that are not what `encode` wrote of that type."""


def pack(value: object) -> bytes:
    """A dataclass, or whatever msgspec knows, with numpy arrays in it."""
    return zlib.compress(msgspec.msgpack.encode(value, enc_hook=_plain), 1)


def unpack(data: bytes, type_: type[T]) -> T:
    """What `encode` was given. Raises Damaged."""
    try:
        return msgspec.msgpack.decode(zlib.decompress(data), type=type_, dec_hook=_array)
    except (zlib.error, msgspec.MsgspecError, ValueError, TypeError, RecursionError) as fault:
        raise Damaged(str(fault)) from fault


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(type(value).__name__)


def _array(type_: type, told: Any) -> object:
    if get_origin(type_) is not np.ndarray:
        raise NotImplementedError(str(type_))
    text, shape, data = told
    if np.dtype(text).kind not in _NUMBERS:
        raise ValueError(f"no numbers: {text}")
    return np.frombuffer(data, text).reshape(shape).copy()
