"""A trace document cut into windows of whole events, without ever holding the document.

A cut between two events is a guess (`}, {` also stands inside names and nested arguments) that decoding proves: text
that starts at an event and decodes as a list of events ends at one, too. A window that cannot be decoded is read
event by event, each up to where its own JSON ends: bare NaN and broken UTF-8 are mended, an event that is no JSON is
skipped up to the next `}, {` that starts one, and both are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from traceq.errors import UnreadableInput
from traceq.kineto.json_values import PLACE, end_of_match, end_of_value, next_start
from traceq.kineto.raw_events import RawEvent
from traceq.locations import Place

__all__ = ["Document", "Readable"]

_WINDOW = 1 << 17
_LONGEST_MB = 64
_LONGEST = _LONGEST_MB << 20  # of an event, and of what stands before and behind the events
_MOST_CUTS = 20
_MOST_MEMBERS = 1000

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_CLOSE = re.compile(rb"\]\s*(?=,\s*\"|\}\s*\Z|\Z)")
_SEPARATOR = re.compile(rb"[\s,]*")
_MEMBER = re.compile(rb'"([^"\\]+)"\s*:\s*')
_KINDS = {b"\x89PNG": "a PNG image", b"PK\x03\x04": "a zip archive", b"%PDF": "a PDF", b"\x7fELF": "a program"}

_decode_events = msgspec.json.Decoder(list[RawEvent]).decode
_decode_event = msgspec.json.Decoder(RawEvent).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NOT_JSON = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Outcome of decoding a window: its events; or where the list closed before its end; or neither, and why."""

    events: list[RawEvent] | None = None
    closed_at: int | None = None
    broken: bool = False


def _attempt(text: bytes) -> _Attempt:
    try:
        return _Attempt(events=_decode_events(text))
    except (msgspec.ValidationError, RecursionError, UnicodeDecodeError):
        return _Attempt(broken=True)
    except msgspec.DecodeError as fault:
        if (found := PLACE.search(str(fault))) and found[1]:
            return _Attempt(closed_at=int(found[2]) - 1)
        return _Attempt(broken="truncated" not in str(fault))


class Readable(Protocol):
    """Where a document's text comes from: a Source, or a tape of one."""

    @property
    def path(self) -> Place: ...
    @property
    def fault(self) -> str: ...
    def read(self, size: int, /) -> bytes: ...


@dataclass(slots=True)
class Document:
    """Reads one document: exhaust `windows()`, then look at the rest.

    `position` is how far it has read and `metadata` has the raw JSON of the other top-level keys; `truncated_at`,
    `skipped_at`, `mended_at`, `commas_at` and `broken_metadata_at` are byte positions in the plain text;
    `comma_due`: an event stands right before `position`. A faster reader takes the text between two calls of `advance`
    from it, and gives back what it will not decide: `release` and `resume`.
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
        """Lists of events, in file order. Raises UnreadableInput where the file is no trace."""
        self.open()
        while not self.done:
            yield from self.advance()

    def open(self) -> None:
        """Read up to the first event."""
        self._read_head()

    def advance(self) -> Iterator[list[RawEvent]]:
        """Windows of the next stretch of text, or all that is left where the file ends; that sets `done`."""
        if not self._at_end:
            self._fill(min(max(_WINDOW, len(self._buffer)), _LONGEST))  # a long event is not decoded over and over
        while not self._at_end and (events := self._next_window()) is not None:
            yield events
        if self._at_end:
            self.done = True
            yield from self._last_windows()

    def release(self) -> bytes:
        """Give up the text behind `position` that was read but not decoded."""
        rest, self._buffer, self._at_end = self._buffer, b"", False
        return rest

    def resume(self, position: int, *, comma_due: bool) -> None:
        """Go on at the start of an event, or behind one, to which another reader has come."""
        self.position, self.comma_due = position, comma_due

    def _fill(self, size: int) -> None:
        """Add `size` bytes to the buffer, or all that is left."""
        chunks = [self._buffer]
        while size > 0 and (chunk := self.source.read(size)):
            chunks.append(chunk)
            size -= len(chunk)
        self._buffer = b"".join(chunks)
        self._at_end = size > 0

    def _take(self, size: int) -> None:
        self._buffer = self._buffer[size:]
        self.position += size

    def _read_head(self) -> None:
        """Stand behind the `[` that opens the events."""
        self._fill(_WINDOW)
        self._take(len(self._buffer) - len(self._buffer.removeprefix(b"\xef\xbb\xbf").lstrip()))
        if self._buffer.startswith(b"["):
            self._take(1)
            return
        if not self._buffer.startswith(b"{"):
            raise UnreadableInput(str(self.source.path), self._what_it_is(), "a Kineto trace (JSON)")
        self._is_object = True
        while (end := self._end_of_head()) is None:
            if self._at_end or len(self._buffer) > _LONGEST:
                raise self._no_events()
            self._fill(len(self._buffer))
        self._read_members(self._buffer[:end] + b"]}")
        self._take(end)

    def _end_of_head(self) -> int | None:
        """Where the events begin; a `traceEvents` inside another value is passed over, as the text breaks off there."""
        starts = [found.end() for found in _EVENTS_KEY.finditer(self._buffer)]
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
        """Metadata of an object; where it is no JSON, the members that can be found. False where it ends early."""
        breaks_off = False
        try:
            self.metadata.update(_decode_object(text))
            return True
        except _NOT_JSON as fault:
            breaks_off = "truncated" in str(fault)
            self.broken_metadata_at = None if breaks_off else self.position
        at, mended = 0, bytearray(text)
        for _ in range(_MOST_MEMBERS):
            if (found := _MEMBER.search(mended, at)) is None:
                break
            end = end_of_value(mended, found.end())
            at = found.end() if end is None or end < 0 else end
            if at > found.end():
                self.metadata[found[1].decode("utf-8", "replace")] = msgspec.Raw(bytes(mended[found.end() : at]))
        return not breaks_off

    def _no_events(self) -> UnreadableInput:
        where = str(self.source.path)
        if self.source.fault:
            return UnreadableInput(where, f"the archive breaks off before the first event ({self.source.fault})")
        try:
            keys = ", ".join(sorted(_decode_object(self._buffer))[:4]) or "none"
        except _NOT_JSON as fault:
            return UnreadableInput(where, f"no list `traceEvents`, and {str(fault)[0].lower()}{str(fault)[1:]}")
        return UnreadableInput(where, f"a JSON object with the keys {keys}", "a list `traceEvents`")

    def _what_it_is(self) -> str:
        if self.source.fault:
            return f"the archive is damaged ({self.source.fault})"
        if not self._buffer.strip():
            return "a file without content"
        return _KINDS.get(self._buffer[:4], f"a file that starts with {self._buffer[:12]!r}")

    def _next_window(self) -> list[RawEvent] | None:
        """Events up to the last boundary in the buffer; None where it takes more bytes to find one."""
        for cut in self._cuts():
            attempt = self._attempt(memoryview(self._buffer)[:cut], b"]")
            if attempt.events is not None:
                self._take(self._next_event(cut))
                return attempt.events
            if attempt.closed_at is not None:
                self._fill_to_end(self._buffer.rindex(b"]", 0, attempt.closed_at - 1))
                return None
            if attempt.broken:
                break
        else:
            if len(self._buffer) <= _LONGEST:
                return None
        events, closed = self._salvage()
        if closed:
            self._fill_to_end(0)
        elif not events and len(self._buffer) > _LONGEST:
            raise self._too_long("an event", 0)
        return events if events or closed else None

    def _fill_to_end(self, close: int) -> None:
        """Add all that is left, where the list of events closes at a place in the buffer."""
        self._fill(_LONGEST + 1)
        if len(self._buffer) - close > _LONGEST:
            raise self._too_long("what follows the events", close)

    def _too_long(self, what: str, at: int) -> UnreadableInput:
        return UnreadableInput(
            str(self.source.path), f"byte {self.position + at}: {what} is longer than {_LONGEST_MB} MB"
        )

    def _attempt(self, *text: bytes | memoryview) -> _Attempt:
        """Decode the rest of a list; where a comma should come first, it is looked at event by event."""
        return _Attempt(broken=True) if self.comma_due else _attempt(b"".join((b"[", *text)))

    def _cuts(self) -> Iterator[int]:
        """Ends of events, guessed, last first: behind a `}` that a comma and a `{` follow."""
        at = len(self._buffer)
        for _ in range(_MOST_CUTS):
            while (at := self._buffer.rfind(b"{", 0, at)) > 0:
                lead = self._buffer[max(0, at - 64) : at].rstrip()
                if lead.endswith(b",") and (lead := lead[:-1].rstrip()).endswith(b"}"):
                    yield max(0, at - 64) + len(lead)
                    break
            else:
                return

    def _next_event(self, cut: int) -> int:
        return self._buffer.index(b"{", cut)

    def _last_windows(self) -> Iterator[list[RawEvent]]:
        """What the buffer holds once the file is at its end: events, the closing bracket, metadata."""
        if not self._buffer.strip():
            self.truncated_at = self.position + len(self._buffer)
            return
        attempt = self._attempt(self._buffer)
        if attempt.events is not None and not self._is_object:
            self._take(len(self._buffer))
            yield attempt.events
        elif attempt.closed_at is not None:
            end = self._buffer.rindex(b"]", 0, attempt.closed_at - 1)
            yield _decode_events(b"[" + self._buffer[:end] + b"]")
            self._take(end)
            self._read_tail()
        else:
            events, closed = self._salvage()
            yield events
            if closed:
                self._read_tail()
            else:
                self.truncated_at = self.position + len(self._buffer)

    def _read_tail(self) -> None:
        """Metadata behind the events; an object that does not close there is truncated."""
        behind = self._buffer.lstrip().removeprefix(b"]").lstrip()
        rest = behind.removeprefix(b",").lstrip()
        self._take(len(self._buffer) - len(rest))
        if behind.startswith(b",") != rest.startswith(b'"') or (rest and not self._is_object):
            self.commas_at.append(self.position)
        rest = rest.rstrip()
        is_whole = self._read_members(b"{" + rest) if rest else not self._is_object
        self._take(len(self._buffer))
        if not is_whole or (self._is_object and not rest.endswith(b"}")):
            self.truncated_at = self.position

    def _salvage(self) -> tuple[list[RawEvent], bool]:
        """(events at the start of the buffer one by one, up to one that is not whole; whether their list closes).

        What is no event is skipped and counted.
        """
        text = bytearray(self._buffer)
        events: list[RawEvent] = []
        at, closed = 0, False
        while (start := end_of_match(_SEPARATOR, text, at)) < len(text):
            closed = text[start] == ord("]")
            self._judge_commas(text.count(b",", at, start), start, closed=closed)
            at = start
            end = None if closed else end_of_value(text, at)
            if end is None:
                break
            if end >= 0 and (event := self._decoded(text, at, end)) is not None:
                events.append(event)
                at, self.comma_due = end, True
                continue
            follows = next_start(text, at, at_end=self._at_end) if end < 0 else end
            if follows is None and not self._at_end:
                break
            self.skipped_at.append(self.position + at)
            at = self._find_close(at) if follows is None else follows
            self.comma_due = end >= 0
        self._take(at)
        return events, closed

    def _judge_commas(self, count: int, at: int, *, closed: bool) -> None:
        """Note what is not one comma between two events, and none elsewhere, at the place of what follows."""
        if count != (self.comma_due and not closed):
            self.commas_at.append(self.position + at)
        self.comma_due = False

    def _decoded(self, text: bytearray, start: int, end: int) -> RawEvent | None:
        """One event; None where its JSON is of another shape."""
        sound = bytes(text[start:end])
        try:
            try:
                event = _decode_event(sound)
            except UnicodeDecodeError:
                sound = sound.decode("utf-8", "replace").encode()
                event = _decode_event(sound)
        except _NOT_JSON:
            return None
        if sound != self._buffer[start:end]:
            self.mended_at.append(self.position + start)
        return event

    def _find_close(self, start: int) -> int:
        """End of the list of events behind one that does not decode: the first `]` whose rest is sound."""
        for found in _CLOSE.finditer(self._buffer, start):
            rest = self._buffer[found.end() :].lstrip().removeprefix(b",")
            if _is_object(rest) if rest else not self._is_object:
                return found.start()
        return len(self._buffer)


def _is_object(rest: bytes) -> bool:
    try:
        _decode_object(b"{" + rest)
    except _NOT_JSON:
        return False
    return True
