"""Plain bytes of a source, read ahead by a thread into a few buffers that are used again and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from traceq.kineto.source import Source

__all__ = ["Tape"]

CHUNK = 1 << 19
_HEADROOM = 1 << 18
_NUM_BUFFERS = 4


class Tape:
    """`buffer[start:stop]` is the text from `position` on that is at hand; `padding` bytes behind it are free to write.

    Text that was not used up stays in front of what `more` adds: most often copied into the headroom of its buffer.
    """

    def __init__(self, source: Source, *, padding: int, chunk: int = 0) -> None:
        self.buffer = bytearray(padding)
        self.start = self.stop = self.position = 0
        self._source, self._padding, self._chunk = source, padding, chunk or CHUNK
        self._ended = False
        self._free: SimpleQueue[bytearray | None] = SimpleQueue()
        self._full: SimpleQueue[tuple[bytearray, int]] = SimpleQueue()
        self._size = _HEADROOM + self._chunk + padding
        self._num_buffers = 0
        self._thread = Thread(target=self._read_ahead, name="traceq-read-ahead", daemon=True)
        self._thread.start()

    def _read_ahead(self) -> None:
        size = 1
        while size and (buffer := self._next_buffer()) is not None:
            size = 0
            try:
                with memoryview(buffer)[_HEADROOM : _HEADROOM + self._chunk] as room:
                    size = self._source.readinto(room)
            finally:
                self._full.put((buffer, size))  # also after a fault that nobody foresaw: who waits must not hang

    def _next_buffer(self) -> bytearray | None:
        if self._num_buffers < _NUM_BUFFERS and self._free.empty():
            self._num_buffers += 1
            return bytearray(self._size)
        return self._free.get()

    @property
    def path(self) -> Path:
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
        if rest <= _HEADROOM:
            return self._append_one(rest)
        pieces = list(self._copied(rest))
        self._replace(b"".join((memoryview(self.buffer)[self.start : self.stop], *pieces)))
        return bool(pieces)

    def _append_one(self, rest: int) -> bool:
        buffer, size = self._full.get()
        self._ended = size == 0
        if self._ended:
            return False
        buffer[_HEADROOM - rest : _HEADROOM] = self.buffer[self.start : self.stop]
        self._give_back(self.buffer)
        self.buffer, self.start, self.stop = buffer, _HEADROOM - rest, _HEADROOM + size
        return True

    def _copied(self, wanted: int) -> Iterator[bytes]:
        while wanted > 0 and not self._ended:
            buffer, size = self._full.get()
            self._ended = size == 0
            if size:
                yield bytes(memoryview(buffer)[_HEADROOM : _HEADROOM + size])
                self._free.put(buffer)
            wanted -= size

    def _replace(self, text: bytes) -> None:
        self._give_back(self.buffer)
        self.buffer = bytearray(b"".join((text, bytes(self._padding))))
        self.start, self.stop = 0, len(text)

    def _give_back(self, buffer: bytearray) -> None:
        if len(buffer) == self._size:
            self._free.put(buffer)

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
        """Stop reading ahead."""
        self._free.put(None)
        while self._thread.is_alive():
            self._thread.join(0.001) if self._full.empty() else self._full.get()
