"""End of the JSON value at a position, and start of the next event after a broken one."""

from __future__ import annotations

import re
from itertools import pairwise

import msgspec

__all__ = ["DECODER_POSITION", "end_of_match", "end_of_value", "next_start"]

DECODER_POSITION = re.compile(r"(trailing characters )?\(byte (\d+)\)$")
"""Position in the message of a msgspec.DecodeError."""

_PLAUSIBLE = 1 << 20  # longest valid event assumed after a broken one
_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_NON_FINITE = re.compile(rb"[-+]?(?:NaN|nan|Infinity|inf)\b")
_decode_value = msgspec.json.Decoder(msgspec.Raw).decode


def end_of_match(pattern: re.Pattern[bytes], text: bytearray, start: int) -> int:
    """Return the end of a match at `start`, or `start` without one."""
    match = pattern.match(text, start)
    return start if match is None else match.end()


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


def next_start(text: bytearray, position: int, *, at_end: bool) -> int | None:
    """Return the start of the next event after one that is not JSON: at a `}, {` that is not inside its arguments.

    None if there is none, or if more text could reveal an earlier one.
    """
    starts = [match.end() for match in _BETWEEN.finditer(text, position)]
    for start, after in pairwise([*starts, len(text)]):
        if b'"ph"' in text[start:after]:
            return start
        end = end_of_value(text, start)
        if end is None and not at_end and len(text) - start < _PLAUSIBLE:
            return None
        if end is not None and end >= 0 and b'"ph"' in text[start:end]:
            return start
    return None
