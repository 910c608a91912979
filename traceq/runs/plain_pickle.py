"""Unpickling of containers, texts and numbers only; anything else is refused before it can run."""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

__all__ = ["PickleRefused", "load_plain"]


class PickleRefused(Exception):
    """Pickle that is not read; the message says why, in one line."""


class _Plain(pickle.Unpickler):
    """Unpickler of types that have opcodes: lists, dicts, tuples, sets, texts, bytes, numbers, None."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise PickleRefused(f"it refers to {module}.{name}; only plain containers and values are read")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise PickleRefused("it refers to an external object; only plain containers and values are read")


def load_plain(content: bytes) -> Any:
    """Return the value in a pickle; every reference to a function goes through `find_class`. Raises PickleRefused."""
    try:
        return _Plain(io.BytesIO(content)).load()
    except PickleRefused:
        raise
    except (pickle.UnpicklingError, EOFError, ArithmeticError, AttributeError, LookupError, MemoryError) as fault:
        raise PickleRefused(f"it is damaged: {fault or type(fault).__name__}") from fault
    except (ImportError, RecursionError, TypeError, ValueError) as fault:
        raise PickleRefused(f"it is damaged: {fault}") from fault
