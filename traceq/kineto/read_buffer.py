"""Plain bytes of a source in a few buffers that are used again and again; what is packed is unpacked by a thread."""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap
from queue import SimpleQueue
from threading import Thread

from traceq.kineto.source import ByteSource, page_buffer
from traceq.locations import Place

__all__ = ["ReadBuffer"]

CHUNK = 1 << 18
_HEADROOM = 1 << 18
_NUM_BUFFERS = 4


class ReadBuffer:
    """`buffer[start:stop]` is the text from `position` on that is at hand; `padding` bytes behind it are free to write.

    Text that was not used up stays in front of what `more` adds: most often copied into the headroom of its buffer.
    """

    def __init__(self, source: ByteSource, *, padding: int, chunks: int = 1) -> None:
        self.buffer: mmap | bytearray = bytearray(padding)
        self.start = self.stop = self.position = 0
        self._source, self._padding = source, padding
        self._ended = False
        self._buffers = (_ReadAhead if source.is_packed else _InTurn)(source, _HEADROOM, chunks * CHUNK, padding)
        self._ahead: tuple[mmap, int] | None = None

    @property
    def path(self) -> Place:
        """Of the source."""
        return self._source.path

    @property
    def fault(self) -> str:
        """Why the text ended early, once its end was reached."""
        return self._source.fault if self._ended else ""

    def more(self) -> bool:
        """Add text: to a long event as much as there is of it, lest it be searched over and over. False at the end."""
        rest = self.stop - self.start
        if self._ended:
            return False
        kept = bytes(memoryview(self.buffer)[self.start : self.stop])
        if rest <= _HEADROOM:
            return self._append_one(kept, rest)
        pieces = list(self._copied(rest))
        self._replace(b"".join((kept, *pieces)))
        return bool(pieces)

    def ahead(self) -> tuple[mmap, int, int] | None:
        """What the next `more` will add, while the text at hand stays: (buffer, start, stop); None at the end."""
        if self._ended:
            return None
        self._ahead = buffer, size = self._next()
        return (buffer, _HEADROOM, _HEADROOM + size) if size else None

    def turn(self) -> bool:
        """`more`, if that leaves the text that is ahead where it is: False where what is left is too long for it."""
        return self.stop - self.start <= _HEADROOM and self.more()

    def _next(self) -> tuple[mmap, int]:
        found, self._ahead = self._ahead, None
        return found or self._buffers.next()

    def _append_one(self, kept: bytes, rest: int) -> bool:
        buffer, size = self._next()
        self._ended = size == 0
        buffer[_HEADROOM - rest : _HEADROOM] = kept
        self.buffer, self.start, self.stop = buffer, _HEADROOM - rest, _HEADROOM + size
        return size > 0

    def _copied(self, wanted: int) -> Iterator[bytes]:
        while wanted > 0 and not self._ended:
            buffer, size = self._next()
            self._ended = size == 0
            if size:
                yield bytes(memoryview(buffer)[_HEADROOM : _HEADROOM + size])
            wanted -= size

    def _replace(self, text: bytes) -> None:
        self.buffer = bytearray(b"".join((text, bytes(self._padding))))
        self.start, self.stop = 0, len(text)

    def skip_to(self, start: int) -> None:
        """The text before an index of the buffer was used up."""
        self.position += start - self.start
        self.start = start

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; empty at the end."""
        if self.start == self.stop and not self.more():
            return b""
        text = bytes(memoryview(self.buffer)[self.start : min(self.start + size, self.stop)])
        self.skip_to(self.start + len(text))
        return text

    def unread(self, text: bytes) -> None:
        """Put back what was read last and not used."""
        self.position -= len(text)
        if len(text) <= self.start:
            self.buffer[self.start - len(text) : self.start] = text
            self.start -= len(text)
        else:
            self._replace(b"".join((text, memoryview(self.buffer)[self.start : self.stop])))

    def close(self) -> None:
        """Stop reading."""
        self._buffers.close()


class _InTurn:
    """Two buffers, filled in turn whenever one is asked for."""

    def __init__(self, source: ByteSource, headroom: int, chunk: int, padding: int) -> None:
        self._source, self._room = source, slice(headroom, headroom + chunk)
        self._buffers = [page_buffer(headroom + chunk + padding) for _ in range(2)]

    def next(self) -> tuple[mmap, int]:
        """(a buffer, how much text stands in it behind the headroom); none at the end. The last but one is forfeit."""
        self._buffers.reverse()
        with memoryview(self._buffers[0])[self._room] as part:
            return self._buffers[0], self._source.readinto(part)

    def close(self) -> None:
        """Nothing goes on."""


class _ReadAhead:
    """As _InTurn, but a thread fills the next buffers meanwhile."""

    def __init__(self, source: ByteSource, headroom: int, chunk: int, padding: int) -> None:
        self._source, self._room = source, slice(headroom, headroom + chunk)
        self._free: SimpleQueue[mmap | None] = SimpleQueue()
        self._full: SimpleQueue[tuple[mmap, int]] = SimpleQueue()
        for _ in range(_NUM_BUFFERS):
            self._free.put(page_buffer(headroom + chunk + padding))
        self._lent: list[mmap] = []
        self._fault: BaseException | None = None
        self._thread = Thread(target=self._read, name="traceq-read-ahead", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        size = 1
        while size and (buffer := self._free.get()) is not None:
            size = 0
            try:
                with memoryview(buffer)[self._room] as part:
                    size = self._source.readinto(part)
            except BaseException as fault:  # noqa: BLE001 - raised by `next`, in the thread that waits
                self._fault = fault
            self._full.put((buffer, size))

    def next(self) -> tuple[mmap, int]:
        if len(self._lent) == 2:
            self._free.put(self._lent.pop(0))
        buffer, size = self._full.get()
        self._lent.append(buffer)
        if self._fault is not None and size == 0:
            raise self._fault
        return buffer, size

    def close(self) -> None:
        """Wait for the thread to end."""
        self._free.put(None)
        self._thread.join()
