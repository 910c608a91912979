"""Where the JSON value at a place ends, and where behind a broken one the next event starts."""

from __future__ import annotations

import re
from itertools import pairwise

import msgspec

__all__ = ["PLACE", "end_of_match", "end_of_value", "next_start"]

PLACE = re.compile(r"(trailing characters )?\(byte (\d+)\)$")
"""What a decoder says of the place where it stopped."""

_PLAUSIBLE = 1 << 20  # no sound event behind a broken one is longer
_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_NON_FINITE = re.compile(rb"[-+]?(?:NaN|nan|Infinity|inf)\b")
_decode_value = msgspec.json.Decoder(msgspec.Raw).decode


def end_of_match(pattern: re.Pattern[bytes], text: bytearray, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def end_of_value(text: bytearray, at: int) -> int | None:
    """Where the JSON value at a place ends; None where the text ends before it does, -1 where it is no JSON.

    A bare NaN or Infinity in it becomes an empty text of the same length, which stands for an absent value. It is
    looked for only where the decoder stops: one inside a name stays what it is.
    """
    while True:
        try:
            _decode_value(memoryview(text)[at:])
        except (RecursionError, UnicodeDecodeError):
            return -1
        except msgspec.DecodeError as fault:
            found = PLACE.search(str(fault))
            if found is None or (not found[1] and int(found[2]) >= len(text) - at):
                return None
            if found[1]:
                return at + int(found[2]) - 1
            stop = at + int(found[2])
            token = _NON_FINITE.match(text, stop - 1) or _NON_FINITE.match(text, stop)
            if token is None:
                return -1
            start, end = token.span()
            del token  # a match keeps a bytearray from being written to
            text[start:end] = b'""'.ljust(end - start)
        else:
            return len(text)


def next_start(text: bytearray, at: int, *, at_end: bool) -> int | None:
    """Start of the next event behind one that is no JSON: at a `}, {` that is not inside its arguments.

    None where there is none, or where more text could show an earlier one.
    """
    starts = [found.end() for found in _BETWEEN.finditer(text, at)]
    for start, after in pairwise([*starts, len(text)]):
        if b'"ph"' in text[start:after]:
            return start
        end = end_of_value(text, start)
        if end is None and not at_end and len(text) - start < _PLAUSIBLE:
            return None
        if end is not None and end >= 0 and b'"ph"' in text[start:end]:
            return start
    return None
