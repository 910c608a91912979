"""Events of damaged text, read one by one: broken ones are repaired, or skipped up to the next that can be read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from traceq.kineto.raw_events import RawEvent

DECODER_POSITION = re.compile(r"(trailing characters )?\(byte (\d+)\)$")
"""Position in the message of a msgspec.DecodeError."""

_NON_FINITE = re.compile(rb"[-+]?(?:NaN|nan|Infinity|inf)\b")
_decode_value = msgspec.json.Decoder(msgspec.Raw).decode

_HEX = rb"[\da-fA-F]{2}"
_ESCAPE = re.compile(
    rb"\\(?:(?:u[dD][89abAB]%(hex)s\\u[dD][c-fC-F]%(hex)s)|(u[dD][89a-fA-F]%(hex)s)|.)" % {b"hex": _HEX}, re.DOTALL
)
"""Escape of a surrogate pair, of an unpaired surrogate (the group), or of anything else."""

_PLAUSIBLE = 1 << 20  # longest valid event assumed after a broken one
_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_CLOSE = re.compile(rb"\]\s*(?=,\s*\"|\}\s*\Z|\Z)")
_SEPARATOR = re.compile(rb"[\s,]*")
_NOT_JSON = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_decode_event = msgspec.json.Decoder(RawEvent).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(slots=True, eq=False)
class Salvaged:
    """Events read up to index `stop` of a text, where their list closes or an event is incomplete.

    `skipped`, `mended` and `commas` are indexes of skipped and repaired events, and of values after a missing or an
    extra comma. `comma_due`: an event ends right before `stop`.
    """

    comma_due: bool
    stop: int = 0
    closed: bool = False
    events: list[RawEvent] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    mended: list[int] = field(default_factory=list)
    commas: list[int] = field(default_factory=list)


def salvage(original: bytes, *, comma_due: bool, at_end: bool, is_object: bool) -> Salvaged:
    """Read the events of a text that begins inside their list; what is not an event is skipped.

    `at_end`: the file ends with the text. `is_object`: the list is a member of an object, so metadata can follow it.
    """
    text, result = bytearray(replace_unpaired(original)), Salvaged(comma_due)
    while (start := _end_of_separator(text, result.stop)) < len(text):
        result.closed = text[start] == ord("]")
        if text.count(b",", result.stop, start) != (result.comma_due and not result.closed):
            result.commas.append(start)
        result.comma_due, result.stop = False, start
        end = None if result.closed else end_of_value(text, start)
        if end is None:
            break
        if end >= 0 and (event := _repaired(bytes(text[start:end]), original[start:end], start, result)) is not None:
            result.events.append(event)
            result.stop, result.comma_due = end, True
            continue
        follows = _next_start(text, start, at_end=at_end) if end < 0 else end
        if follows is None and not at_end:
            break
        result.skipped.append(start)
        result.stop = _find_close(original, start, is_object=is_object) if follows is None else follows
        result.comma_due = end >= 0
    return result


def _end_of_separator(text: bytearray, start: int) -> int:
    match = _SEPARATOR.match(text, start)
    return start if match is None else match.end()


def _repaired(text: bytes, original: bytes, start: int, result: Salvaged) -> RawEvent | None:
    """Return one event, of which broken UTF-8 is replaced; None if its JSON has another shape."""
    try:
        try:
            event = _decode_event(text)
        except (msgspec.DecodeError, UnicodeDecodeError):  # of broken UTF-8 the former, from msgspec 0.23 on
            text = text.decode("utf-8", "replace").encode()
            event = _decode_event(text)
    except _NOT_JSON:
        return None
    if text != original:
        result.mended.append(start)
    return event


def _next_start(text: bytearray, position: int, *, at_end: bool) -> int | None:
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


def _find_close(text: bytes, start: int, *, is_object: bool) -> int:
    """Return the end of the list of events after a broken one: the first `]` that valid metadata follows."""
    for bracket in _CLOSE.finditer(text, start):
        rest = text[bracket.end() :].lstrip().removeprefix(b",")
        if _is_object(rest) if rest else not is_object:
            return bracket.start()
    return len(text)


def _is_object(rest: bytes) -> bool:
    try:
        _decode_object(b"{" + rest)
    except _NOT_JSON:
        return False
    return True


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
