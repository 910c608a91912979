"""End of the JSON value at a position; bare NaN and Infinity, which are not JSON, are repaired on the way."""

from __future__ import annotations

import re

import msgspec

__all__ = ["DECODER_POSITION", "end_of_value", "replace_unpaired"]

DECODER_POSITION = re.compile(r"(trailing characters )?\(byte (\d+)\)$")
"""Position in the message of a msgspec.DecodeError."""

_NON_FINITE = re.compile(rb"[-+]?(?:NaN|nan|Infinity|inf)\b")
_decode_value = msgspec.json.Decoder(msgspec.Raw).decode


_HEX = rb"[\da-fA-F]{2}"
_ESCAPE = re.compile(
    rb"\\(?:(?:u[dD][89abAB]%(hex)s\\u[dD][c-fC-F]%(hex)s)|(u[dD][89a-fA-F]%(hex)s)|.)" % {b"hex": _HEX}, re.DOTALL
)
"""Escape of a surrogate pair, of an unpaired surrogate (the group), or of anything else."""


def replace_unpaired(text: bytes) -> bytes:
    """Return JSON of the same length with U+FFFD for unpaired surrogates, which no UTF-8 can hold."""
    return _ESCAPE.sub(lambda match: rb"\ufffd" if match[1] else match[0], text)


def end_of_value(text: bytearray, start: int) -> int | None:
    """Return the end of the JSON value at `start`; None if the text ends before it does, -1 if it is not JSON.

    A bare NaN or Infinity in it is overwritten by an empty string of the same length, which means an absent value. Only
    the position where the decoder stops is checked: one inside a name is left as it is.
    """
    while True:
        try:
            _decode_value(memoryview(text)[start:])
        except (RecursionError, UnicodeDecodeError):
            return -1
        except msgspec.DecodeError as fault:
            position = DECODER_POSITION.search(str(fault))
            if "UTF-8" in str(fault):  # from msgspec 0.23 on
                return -1
            if position is None or (not position[1] and int(position[2]) >= len(text) - start):
                return None
            if position[1]:
                return start + int(position[2]) - 1
            stop = start + int(position[2])
            token = _NON_FINITE.match(text, stop - 1) or _NON_FINITE.match(text, stop)
            if token is None:
                return -1
            first, last = token.span()
            del token  # a bytearray cannot be written to while a match refers to it
            text[first:last] = b'""'.ljust(last - first)
        else:
            return len(text)
