"""Unpickling of containers, texts and numbers only; anything else is refused before it can run.

The opcodes are checked before anything is loaded: what they take is bounded by the pickle's size.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Collection
from typing import Any, NoReturn

from traceq.garbage_collection import gc_disabled

_VALUES_PER_BYTE = 4  # of what is written once and referred to often, as frames are
_MOST_TUPLES = 1 << 16
"""Tuples that may hold each other: hashing recurses into them on the C stack."""

_FAULTS = (
    pickle.UnpicklingError,
    EOFError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    ImportError,
    RecursionError,
    TypeError,
    ValueError,
)


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
    value = load_shared(content)
    _check_size(value, _VALUES_PER_BYTE * len(content))
    return value


def load_shared(content: bytes) -> Any:
    """Return the value in a pickle, as `load_plain` does, in which parts may be held any number of times, or cyclic.

    Its reader must visit each part once, or bound how often it does. Raises PickleRefused.
    """
    try:
        _check_opcodes(content)
        with gc_disabled():
            return _Plain(io.BytesIO(content)).load()
    except PickleRefused:
        raise
    except _FAULTS as fault:
        raise PickleRefused(f"it is damaged: {fault or type(fault).__name__}") from fault


def _check_opcodes(content: bytes) -> None:
    """Raise PickleRefused for a place in the memo beyond the pickle's size, or too many tuples within tuples.

    Most opcodes are passed over by a regular expression, 50 ns each; the others are read one by one.
    """
    import pickletools  # no trace is a pickle

    harmless, stream, place, num_tuples = _harmless(len(content)), io.BytesIO(content), 0, 0
    while True:
        match = harmless.match(content, place)
        stream.seek(match.end() if match else place)
        opcode, argument, _ = next(pickletools.genops(stream))
        place = stream.tell()
        if opcode.name == "STOP":
            return
        if "PUT" in opcode.name and argument is not None and argument > len(content):
            raise PickleRefused("its memo is larger than itself")
        num_tuples += "TUPLE" in opcode.name
        if num_tuples > _MOST_TUPLES:
            raise PickleRefused(f"it has more than {_MOST_TUPLES:,} tuples that may hold each other")


def _harmless(size: int) -> re.Pattern[bytes]:
    """Return what matches opcodes that need no check in a pickle of a size: of short values, and of containers."""
    opcodes = (
        rb"K.K.\x86|K.M..\x86",  # a pair of numbers, as the id of a memory pool
        rb"[Khq].",
        rb"\x94|[](}aeusNl\x88\x89]",
        rb"M..|[Jj].{4}|[G\x95].{8}",
        b"r" + _at_most(size),
        _by_length(rb"\x8c", 256),
        _by_length(b"X", 256, rb"\0\0\0"),
        _by_length(rb"\x8a", 16),
    )
    return re.compile(b"(?s:" + b"|".join(opcodes) + b")*+")


def _by_length(opcode: bytes, most: int, rest: bytes = b"") -> bytes:
    """Return an expression for an opcode, a length below `most` in one byte, the `rest` of it, and as many bytes."""
    lengths = (re.escape(bytes([length])) + rest + b".{%d}" % length for length in range(most))
    return opcode + b"(?:" + b"|".join(lengths) + b")"


def _at_most(size: int) -> bytes:
    """Return an expression for four bytes, the least significant first, of a number up to about a size."""
    digits = min(size, 2**32 - 1).to_bytes(4, "little").rstrip(b"\0") or b"\0"
    return b"." * (len(digits) - 1) + b"[\\x00-\\x%02x]" % digits[-1] + rb"\0" * (4 - len(digits))


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
