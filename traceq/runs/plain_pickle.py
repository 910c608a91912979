"""Unpickling of containers, texts and numbers only; anything else is refused before it can run."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Collection
from typing import Any, NoReturn

__all__ = ["PickleRefused", "load_plain"]


_VALUES_PER_BYTE = 4  # of what is written once and referred to often, as frames are


class PickleRefused(Exception):
    """Pickle that is not read; the message says why, in one line."""


class _Plain(pickle.Unpickler):
    """Unpickler of types that have opcodes: lists, dicts, tuples, sets, texts, bytes, numbers, None."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise PickleRefused(f"it refers to {module}.{name}; only plain containers and values are read")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise PickleRefused("it refers to an external object; only plain containers and values are read")


def load_plain(content: bytes) -> Any:
    """Return the value in a pickle; every reference to a function goes through `find_class`. Raises PickleRefused.

    What it takes is bounded by its size: a memo of a few bytes can be sparse up to 2^32, or refer to itself doubled.
    """
    try:
        _check_memo(content)
        value = _Plain(io.BytesIO(content)).load()
        _check_size(value, _VALUES_PER_BYTE * len(content))
        return value
    except PickleRefused:
        raise
    except (pickle.UnpicklingError, EOFError, ArithmeticError, AttributeError, LookupError, MemoryError) as fault:
        raise PickleRefused(f"it is damaged: {fault or type(fault).__name__}") from fault
    except (ImportError, RecursionError, TypeError, ValueError) as fault:
        raise PickleRefused(f"it is damaged: {fault}") from fault


def _check_memo(content: bytes) -> None:
    """Raise PickleRefused for a place in the memo beyond the pickle's size, up to which memory would be taken."""
    for opcode, argument, _ in pickletools.genops(content):
        if "PUT" in opcode.name and argument is not None and argument > len(content):
            raise PickleRefused("its memo is larger than itself")


def _check_size(value: Any, most: int) -> None:
    """Raise PickleRefused for more than `most` values, each counted wherever it is held, or one that holds itself."""
    pending, num = [value], 1
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            parts: Collection[Any] = value.values()  # keys hold few, as they are hashable
        elif isinstance(value, list | tuple | set | frozenset):
            parts = value
        else:
            continue
        num += len(parts)
        if num > most:
            raise PickleRefused(f"it expands to more than {most:,} values")
        pending += parts
