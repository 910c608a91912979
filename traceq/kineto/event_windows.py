"""A trace document cut into windows of whole events, without ever holding the document.

A cut between two events is a guess (`}, {` also occurs inside names and nested arguments) that decoding confirms: text
that starts at an event and decodes as a list of events also ends at one. A window that cannot be decoded is read event
by event, each up to the end of its JSON: bare NaN and broken UTF-8 are repaired, an event that is not JSON is skipped
up to the next `}, {` that starts one, and both are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np

from traceq.errors import UnreadableInput
from traceq.frozen import frozen
from traceq.kineto.limits import LONGEST, LONGEST_MB, MOST_MEMBERS
from traceq.kineto.raw_events import RawEvent
from traceq.locations import Place
from traceq.model import Category, Events

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
_decode_event = msgspec.json.Decoder(RawEvent).decode


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


_BY_NAME = (
    (re.compile(r"\.(nsys-rep|qdrep|qdstrm)$"), "a report of Nsight Systems; `nsys stats` and nsys-ui read it"),
    (re.compile(r"\.(ncu-rep|ncu-repz)$"), "a report of Nsight Compute; ncu-ui reads it"),
)
_BY_START = (
    (b"SQLite format 3", "an SQLite database, as `nsys export` writes; `nsys stats` and sqlite3 read it"),
    (b"\x80", "a pickle; of torch.cuda.memory._dump_snapshot, `traceq show` and `traceq diff` read it"),
    (b"<", "a page of HTML or XML"),
)
_BROWSER = re.compile(r"^(devtools|disabled-by-default-|blink|v8|cc$|viz|loading|toplevel|__metadata)")
_SHOWN = 3

_WINDOW = 1 << 17
_MOST_CUTS = 20

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_MEMBER = re.compile(rb'"([^"\\]+)"\s*:\s*')
_KINDS = {
    b"\x89PNG": "a PNG image",
    b"PK\x03\x04": "a zip archive",
    b"%PDF": "a PDF",
    b"\x7fELF": "a program",
    b"version https://git-lfs": "a pointer of Git LFS instead of the file (git lfs pull)",
}
"""What a file is, by how it starts."""

_decode_events = msgspec.json.Decoder(list[RawEvent]).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NOT_JSON = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


@frozen
class _Attempt:
    """Outcome of decoding a window: its events, or where the list closed early, or whether the text is broken."""

    events: list[RawEvent] | None = None
    closed_at: int | None = None
    broken: bool = False


def _try_decode(text: bytes) -> _Attempt:
    try:
        return _Attempt(events=_decode_events(text))
    except (msgspec.ValidationError, RecursionError, UnicodeDecodeError):
        return _Attempt(broken=True)
    except msgspec.DecodeError as fault:
        if (position := DECODER_POSITION.search(str(fault))) and position[1]:
            return _Attempt(closed_at=int(position[2]) - 1)
        return _Attempt(broken="truncated" not in str(fault))


class Readable(Protocol):
    """Source of a document's text: a ByteSource or a ReadBuffer."""

    @property
    def path(self) -> Place: ...
    @property
    def fault(self) -> str: ...
    def read(self, size: int, /) -> bytes: ...


@dataclass(slots=True, eq=False)
class Document:
    """Reader of one document: exhaust `windows()`, then use the other attributes.

    `position` is the number of bytes read and `metadata` the raw JSON of the other top-level keys; `truncated_at`,
    `skipped_at`, `mended_at`, `commas_at` and `broken_metadata_at` are byte positions in the uncompressed text;
    `comma_due`: an event ends right before `position`. A faster reader can take over between two calls of `advance`:
    `release` hands it the text, `resume` continues after text that it has read.
    """

    source: Readable
    position: int = 0
    metadata: dict[str, msgspec.Raw] = field(default_factory=dict)
    truncated_at: int | None = None
    skipped_at: list[int] = field(default_factory=list)
    mended_at: list[int] = field(default_factory=list)
    commas_at: list[int] = field(default_factory=list)
    broken_metadata_at: int | None = None
    comma_due: bool = False
    done: bool = False
    _buffer: bytes = b""
    _at_end: bool = False
    _is_object: bool = False

    def windows(self) -> Iterator[list[RawEvent]]:
        """Yield lists of events, in file order. Raises UnreadableInput if the file is not a trace."""
        self.open()
        while not self.done:
            yield from self.advance()

    def open(self) -> None:
        """Read up to the first event."""
        self._read_head()

    def advance(self) -> Iterator[list[RawEvent]]:
        """Yield the windows of the next stretch of text; at the end of the file all that is left, and set `done`."""
        if not self._at_end:
            self._fill(min(max(_WINDOW, len(self._buffer)), LONGEST))  # doubling: a long event is decoded few times
        while not self._at_end and (events := self._next_window()) is not None:
            yield events
        if self._at_end:
            self.done = True
            yield from self._last_windows()

    def release(self) -> bytes:
        """Return and drop the text after `position` that was read but not decoded."""
        rest, self._buffer, self._at_end = self._buffer, b"", False
        return rest

    def resume(self, position: int, *, comma_due: bool) -> None:
        """Continue at the start or end of an event up to which another reader has read."""
        self.position, self.comma_due = position, comma_due

    def _fill(self, size: int) -> None:
        """Read `size` more bytes into the buffer, or all that is left."""
        chunks = [self._buffer]
        while size > 0 and (chunk := self.source.read(size)):
            chunks.append(chunk)
            size -= len(chunk)
        self._buffer = b"".join(chunks)
        self._at_end = size > 0

    def _skip(self, size: int) -> None:
        self._buffer = self._buffer[size:]
        self.position += size

    def _read_head(self) -> None:
        """Read up to and including the `[` that opens the list of events."""
        self._fill(_WINDOW)
        self._skip(len(self._buffer) - len(self._buffer.removeprefix(b"\xef\xbb\xbf").lstrip()))
        if self._buffer.startswith(b"["):
            self._skip(1)
            return
        if not self._buffer.startswith(b"{"):
            raise UnreadableInput(str(self.source.path), self._describe_content(), "a Kineto trace (JSON)")
        self._is_object = True
        while (end := self._end_of_head()) is None:
            if self._at_end or len(self._buffer) > LONGEST:
                raise self._no_events()
            self._fill(len(self._buffer))
        self._read_members(self._buffer[:end] + b"]}")
        self._skip(end)

    def _end_of_head(self) -> int | None:
        """Return the start of the events, skipping a `traceEvents` nested in another value; None if not read yet."""
        starts = [match.end() for match in _EVENTS_KEY.finditer(self._buffer)]
        for end in starts:
            try:
                _decode_object(self._buffer[:end] + b"]}")
            except msgspec.DecodeError as fault:
                if "truncated" in str(fault):
                    continue
            except (RecursionError, UnicodeDecodeError):
                pass
            return end
        return starts[0] if starts and self._at_end else None

    def _read_members(self, text: bytes) -> bool:
        """Add an object's members to the metadata, if it is not JSON those that can be read; False if it ends early."""
        is_truncated = False
        try:
            self.metadata.update(_decode_object(text))
            return True
        except _NOT_JSON as fault:
            is_truncated = "truncated" in str(fault)
            self.broken_metadata_at = None if is_truncated else self.position
        position, mended = 0, bytearray(replace_unpaired(text))
        for _ in range(MOST_MEMBERS):
            if (key := _MEMBER.search(mended, position)) is None:
                break
            end = end_of_value(mended, key.end())
            position = key.end() if end is None or end < 0 else end
            if position > key.end():
                self.metadata[key[1].decode("utf-8", "replace")] = msgspec.Raw(bytes(mended[key.end() : position]))
        return not is_truncated

    def _no_events(self) -> UnreadableInput:
        where = str(self.source.path)
        if self.source.fault:
            return UnreadableInput(where, f"the archive ends before the first event ({self.source.fault})")
        try:
            keys = ", ".join(sorted(_decode_object(self._buffer))[:4]) or "none"
        except _NOT_JSON as fault:
            reason = str(fault)
            if not reason[:2].isupper():  # of `JSON is malformed`
                reason = f"{reason[:1].lower()}{reason[1:]}"
            return UnreadableInput(where, f"no list `traceEvents`: {reason}")
        return UnreadableInput(where, f"a JSON object with the keys {keys}", "a list `traceEvents`")

    def _describe_content(self) -> str:
        if self.source.fault:
            return f"the archive is damaged ({self.source.fault})"
        if not self._buffer.strip():
            return "the file contains only whitespace"
        other = _describe_file(self.source.path.name, bytes(self._buffer[:16]))
        kinds = (kind for start, kind in _KINDS.items() if self._buffer.startswith(start))
        return other or next(kinds, f"a file that starts with {self._buffer[:12]!r}")

    def _next_window(self) -> list[RawEvent] | None:
        """Return the events up to the last boundary in the buffer; None if more bytes are needed to find one."""
        for cut in self._cuts():
            attempt = self._decode_rest(memoryview(self._buffer)[:cut], b"]")
            if attempt.events is not None:
                self._skip(self._buffer.index(b"{", cut))
                return attempt.events
            if attempt.closed_at is not None:
                self._fill_to_end(self._buffer.rindex(b"]", 0, attempt.closed_at - 1))
                return None
            if attempt.broken:
                break
        else:
            if len(self._buffer) <= LONGEST:
                return None
        events, closed = self._salvage()
        if closed:
            self._fill_to_end(0)
        elif not events and len(self._buffer) > LONGEST:
            raise self._too_long("an event", 0)
        return events if events or closed else None

    def _fill_to_end(self, close: int) -> None:
        """Read all that is left after the list of events, which closes at index `close` of the buffer."""
        self._fill(LONGEST + 1)
        if len(self._buffer) - close > LONGEST:
            raise self._too_long("the text after the events", close)

    def _too_long(self, what: str, index: int) -> UnreadableInput:
        return UnreadableInput(
            str(self.source.path), f"byte {self.position + index}: {what} is longer than {LONGEST_MB} MB"
        )

    def _decode_rest(self, *text: bytes | memoryview) -> _Attempt:
        """Decode the rest of a list; counts as broken where a comma is due, so that it is read event by event."""
        return _Attempt(broken=True) if self.comma_due else _try_decode(b"".join((b"[", *text)))

    def _cuts(self) -> Iterator[int]:
        """Yield likely ends of events, last first: after a `}` that a comma and a `{` follow."""
        brace = len(self._buffer)
        for _ in range(_MOST_CUTS):
            while (brace := self._buffer.rfind(b"{", 0, brace)) > 0:
                lead = self._buffer[max(0, brace - 64) : brace].rstrip()
                if lead.endswith(b",") and (lead := lead[:-1].rstrip()).endswith(b"}"):
                    yield max(0, brace - 64) + len(lead)
                    break
            else:
                return

    def _last_windows(self) -> Iterator[list[RawEvent]]:
        """Yield the events in the buffer at the end of the file, and read the metadata behind their list."""
        if not self._buffer.strip():
            self.truncated_at = self.position + len(self._buffer)
            return
        attempt = self._decode_rest(self._buffer)
        if attempt.events is not None and not self._is_object:
            self._skip(len(self._buffer))
            yield attempt.events
        elif attempt.closed_at is not None:
            end = self._buffer.rindex(b"]", 0, attempt.closed_at - 1)
            yield _decode_events(b"[" + self._buffer[:end] + b"]")
            self._skip(end)
            self._read_tail()
        else:
            events, closed = self._salvage()
            yield events
            if closed:
                self._read_tail()
            else:
                self.truncated_at = self.position + len(self._buffer)

    def _read_tail(self) -> None:
        """Read the metadata after the events; an object that does not close there is truncated."""
        behind = self._buffer.lstrip().removeprefix(b"]").lstrip()
        rest = behind.removeprefix(b",").lstrip()
        self._skip(len(self._buffer) - len(rest))
        if behind.startswith(b",") != rest.startswith(b'"') or (rest and not self._is_object):
            self.commas_at.append(self.position)
        rest = rest.rstrip()
        is_whole = self._read_members(b"{" + rest) if rest else not self._is_object
        self._skip(len(self._buffer))
        if not is_whole or (self._is_object and not rest.endswith(b"}")):
            self.truncated_at = self.position

    def _salvage(self) -> tuple[list[RawEvent], bool]:
        """Read event by event up to an incomplete one; return (events, whether their list closes)."""
        salvaged = salvage(self._buffer, comma_due=self.comma_due, at_end=self._at_end, is_object=self._is_object)
        self.skipped_at += [self.position + index for index in salvaged.skipped]
        self.mended_at += [self.position + index for index in salvaged.mended]
        self.commas_at += [self.position + index for index in salvaged.commas]
        self.comma_due = salvaged.comma_due
        self._skip(salvaged.stop)
        return salvaged.events, salvaged.closed


def _describe_file(name: str, start: bytes) -> str:
    """Return what a file is by its name or its first bytes, and what reads it; "" if that is not known."""
    by_name = next((text for pattern, text in _BY_NAME if pattern.search(name)), "")
    return by_name or next((text for magic, text in _BY_START if start.startswith(magic)), "")


def browser_trace(events: Events) -> str:
    """Return what a browser's trace is, of which no event is one of PyTorch's profiler; "" for others."""
    if len(events) == 0 or (events.category != Category.OTHER).any():
        return ""
    numbers, counts = np.unique(events.cat, return_counts=True)
    names = [events.strings[number] for number in numbers[np.argsort(-counts)].tolist()]
    listed = ", ".join(f"`{name}`" for name in names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    if not any(map(_BROWSER.match, names)):
        return ""
    return f"a trace of a browser, with {len(events):,} events in the categories {listed}"
