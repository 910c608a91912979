"""A trace document cut into windows of whole events, without ever holding the document.

A cut between two events is a guess (`}, {` also stands inside names and nested arguments) that decoding proves: text
that starts at an event and decodes as a list of events ends at one, too. A window that cannot be decoded is read
event by event: bare NaN and broken UTF-8 are mended, an event that is no JSON is skipped, and both are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from traceq.errors import UnreadableInput
from traceq.kineto.events import RawEvent
from traceq.kineto.source import Source

__all__ = ["Document"]

_WINDOW = 1 << 17
_LONGEST = 256 << 20
_MOST_CUTS = 20
_MOST_PIECES = 8

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_CLOSE = re.compile(rb"\]\s*(?=,\s*\"|\}\s*\Z|\Z)")
_NON_FINITE = re.compile(rb'("(?:[^"\\]|\\.)*")|[-+]?\b(?:NaN|nan|Infinity|inf)\b')
_POSITION = re.compile(r"trailing characters \(byte (\d+)\)")
_KINDS = {b"\x89PNG": "a PNG image", b"PK\x03\x04": "a zip archive", b"%PDF": "a PDF", b"\x7fELF": "a program"}

_decode_events = msgspec.json.Decoder(list[RawEvent]).decode
_decode_event = msgspec.json.Decoder(RawEvent).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


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
        if found := _POSITION.search(str(fault)):
            return _Attempt(closed_at=int(found[1]) - 1)
        return _Attempt(broken="truncated" not in str(fault))


@dataclass(slots=True)
class Document:
    """Reads one document: exhaust `windows()`, then look at the rest.

    `position` is how far it has read and `metadata` has the raw JSON of the other top-level keys; `truncated_at`,
    `skipped_at` and `mended_at` are byte positions in the plain text.
    """

    source: Source
    position: int = 0
    metadata: dict[str, msgspec.Raw] = field(default_factory=dict)
    truncated_at: int | None = None
    skipped_at: list[int] = field(default_factory=list)
    mended_at: list[int] = field(default_factory=list)
    _buffer: bytes = b""
    _at_end: bool = False

    def windows(self) -> Iterator[list[RawEvent]]:
        """Lists of events, in file order. Raises UnreadableInput where the file is no trace."""
        self._read_head()
        while not self._at_end:
            self._fill(_WINDOW)
            while not self._at_end and (events := self._next_window()) is not None:
                yield events
        yield from self._last_windows()

    def _fill(self, size: int) -> None:
        """Add `size` bytes to the buffer, or all that is left."""
        chunks = [self._buffer]
        while size > 0 and (chunk := self.source.read(size)):
            chunks.append(chunk)
            size -= len(chunk)
        self._buffer = b"".join(chunks)
        self._at_end = size > 0

    def _take(self, size: int) -> bytes:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        self.position += size
        return taken

    def _read_head(self) -> None:
        """Stand behind the `[` that opens the events."""
        self._fill(_WINDOW)
        start = len(self._buffer) - len(self._buffer.removeprefix(b"\xef\xbb\xbf").lstrip())
        if self._buffer[start : start + 1] == b"[":
            self._take(start + 1)
            return
        if self._buffer[start : start + 1] != b"{":
            raise UnreadableInput(str(self.source.path), self._what_it_is(), "a Kineto trace (JSON)")
        while (end := self._end_of_head()) is None:
            if self._at_end or len(self._buffer) > _LONGEST:
                raise self._no_events()
            self._fill(len(self._buffer))
        self._take(end)

    def _end_of_head(self) -> int | None:
        """Where the events begin; a `"traceEvents": [` inside a string does not decode, and is passed over."""
        starts = [found.end() for found in _EVENTS_KEY.finditer(self._buffer)]
        for end in starts:
            try:
                self.metadata.update(_decode_object(self._buffer[:end] + b"]}"))
            except msgspec.DecodeError:
                continue
            return end
        return starts[0] if starts else None

    def _no_events(self) -> UnreadableInput:
        where = str(self.source.path)
        if self.source.fault:
            return UnreadableInput(where, f"the archive breaks off before the first event ({self.source.fault})")
        try:
            keys = ", ".join(sorted(_decode_object(self._buffer))[:4]) or "none"
        except msgspec.DecodeError as fault:
            return UnreadableInput(where, f"no `traceEvents`, and {str(fault)[0].lower()}{str(fault)[1:]}")
        return UnreadableInput(where, f"a JSON object with the keys {keys}", "`traceEvents`")

    def _what_it_is(self) -> str:
        if self.source.fault:
            return f"the archive is damaged ({self.source.fault})"
        return _KINDS.get(self._buffer[:4], f"a file that starts with {self._buffer[:12]!r}")

    def _next_window(self) -> list[RawEvent] | None:
        """Events up to the last boundary in the buffer; None where it takes more bytes to find one."""
        for cut in self._cuts():
            attempt = _attempt(b"[" + self._buffer[:cut] + b"]")
            if attempt.events is not None:
                self._take(self._next_event(cut))
                return attempt.events
            if attempt.closed_at is not None:
                self._fill(_LONGEST)
                return None
            if attempt.broken:
                events = self._salvage(cut)
                self._take(self._next_event(0))
                return events
        if len(self._buffer) > _LONGEST:
            raise UnreadableInput(str(self.source.path), f"byte {self.position}: an event longer than 256 MB")
        return None

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
            self.truncated_at = self.position
            return
        attempt = _attempt(b"[" + self._buffer)
        if attempt.events is not None:
            yield attempt.events
        elif attempt.closed_at is not None:
            yield _decode_events(b"[" + self._take(attempt.closed_at - 1))
            self._read_tail()
        elif attempt.broken:
            yield self._salvage(self._find_close())
            self._read_tail()
        else:
            yield from self._truncated()

    def _truncated(self) -> Iterator[list[RawEvent]]:
        """Whole events of a file that ends inside one."""
        ends = [found.start() for found in _BETWEEN.finditer(self._buffer)]
        for cut in [len(self._buffer), *reversed(ends)]:
            attempt = _attempt(b"[" + self._buffer[:cut] + b"]")
            if attempt.events is not None or attempt.broken:
                yield self._salvage(cut)
                break
        self.truncated_at = self.position + len(self._buffer)

    def _find_close(self) -> int:
        """End of the list of events in a buffer that does not decode: the first `]` whose rest is sound."""
        for found in _CLOSE.finditer(self._buffer):
            rest = self._buffer[found.end() :].lstrip().removeprefix(b",")
            if not rest or _is_object(rest):
                return found.start()
        return len(self._buffer)

    def _read_tail(self) -> None:
        """Metadata behind the events; what stands there broken is a truncation."""
        rest = self._buffer.strip().removeprefix(b"]").lstrip().removeprefix(b",").strip()
        if not rest:
            return
        try:
            self.metadata.update(_decode_object(b"{" + rest))
        except msgspec.DecodeError:
            self.truncated_at = self.position + len(self._buffer)

    def _salvage(self, size: int) -> list[RawEvent]:
        """Events of the next `size` bytes one by one; what is no event is skipped and counted."""
        cuts = [0, *(found.end() for found in _BETWEEN.finditer(self._buffer, 0, size)), size]
        events: list[RawEvent] = []
        at = 0
        while at < len(cuts) - 1:
            for upto in range(at + 1, min(at + _MOST_PIECES, len(cuts) - 1) + 1):
                if (event := self._salvage_one(cuts[at], cuts[upto])) is not None:
                    events.append(event)
                    at = upto
                    break
            else:
                self.skipped_at.append(self.position + cuts[at])
                at += 1
        self._take(size)
        return events

    def _salvage_one(self, start: int, end: int) -> RawEvent | None:
        text = self._buffer[start:end].strip().rstrip(b",").rstrip()
        for mend in (bytes, _mend):
            try:
                event = _decode_event(mend(text))
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                continue
            if mend is _mend:
                self.mended_at.append(self.position + start)
            return event
        return None


def _mend(text: bytes) -> bytes:
    """Bare NaN and Infinity as null, broken UTF-8 replaced."""
    text = text.decode("utf-8", "replace").encode()
    return _NON_FINITE.sub(lambda found: found[1] or b"null", text)


def _is_object(rest: bytes) -> bool:
    try:
        _decode_object(b"{" + rest)
    except msgspec.DecodeError:
        return False
    return True
