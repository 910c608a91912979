"""Uncompressed bytes of a source in a few reused buffers; archives are decompressed by another thread."""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap
from queue import SimpleQueue
from threading import Thread

from traceq.kineto.decompression import ByteSource, page_buffer
from traceq.locations import Place

CHUNK = 1 << 18
_HEADROOM = 1 << 18
_NUM_BUFFERS = 4


class ReadBuffer:
    """Window of a source: `buffer[start:stop]` is the text from `position` on, followed by `padding` writable bytes.

    `read_more` appends text to the part that is still unused, which is copied into the headroom of the next buffer if
    it fits.
    """

    def __init__(self, source: ByteSource, *, padding: int) -> None:
        self.buffer: mmap | bytearray = bytearray(padding)
        self.start = self.stop = self.position = 0
        self._source, self._padding = source, padding
        self._ended = False
        self._buffers = (_ReadAhead if source.is_packed else _Alternating)(source, _HEADROOM, CHUNK, padding)

    @property
    def path(self) -> Place:
        """Path of the source."""
        return self._source.path

    @property
    def fault(self) -> str:
        """Why the text ended early, known once its end was reached."""
        return self._source.fault if self._ended else ""

    def read_more(self) -> bool:
        """Append text, at least as much as is unused: a long event is searched few times. Return False at the end."""
        rest = self.stop - self.start
        if self._ended:
            return False
        unused = bytes(memoryview(self.buffer)[self.start : self.stop])
        if rest <= _HEADROOM:
            return self._switch_buffer(unused, rest)
        pieces = list(self._read_copies(rest))
        self._replace(b"".join((unused, *pieces)))
        return bool(pieces)

    def _switch_buffer(self, unused: bytes, rest: int) -> bool:
        buffer, size = self._buffers.next()
        self._ended = size == 0
        buffer[_HEADROOM - rest : _HEADROOM] = unused
        self.buffer, self.start, self.stop = buffer, _HEADROOM - rest, _HEADROOM + size
        return size > 0

    def _read_copies(self, size_bytes: int) -> Iterator[bytes]:
        while size_bytes > 0 and not self._ended:
            buffer, size = self._buffers.next()
            self._ended = size == 0
            if size:
                yield bytes(memoryview(buffer)[_HEADROOM : _HEADROOM + size])
            size_bytes -= size

    def _replace(self, text: bytes) -> None:
        self.buffer = bytearray(b"".join((text, bytes(self._padding))))
        self.start, self.stop = 0, len(text)

    def skip_to(self, start: int) -> None:
        """Mark the text before an index of the buffer as used."""
        self.position += start - self.start
        self.start = start

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; empty at the end."""
        if self.start == self.stop and not self.read_more():
            return b""
        text = bytes(memoryview(self.buffer)[self.start : min(self.start + size, self.stop)])
        self.skip_to(self.start + len(text))
        return text

    def unread(self, text: bytes) -> None:
        """Put back text that was read last."""
        self.position -= len(text)
        if len(text) <= self.start:
            self.buffer[self.start - len(text) : self.start] = text
            self.start -= len(text)
        else:
            self._replace(b"".join((text, memoryview(self.buffer)[self.start : self.stop])))

    def close(self) -> None:
        """Stop reading."""
        self._buffers.close()


class _Alternating:
    """Two buffers, filled alternately on demand."""

    def __init__(self, source: ByteSource, headroom: int, chunk: int, padding: int) -> None:
        self._source, self._range = source, slice(headroom, headroom + chunk)
        self._buffers = [page_buffer(headroom + chunk + padding) for _ in range(2)]

    def next(self) -> tuple[mmap, int]:
        """Return (buffer, size of the text after its headroom), size 0 at the end.

        The buffer returned two calls ago is overwritten.
        """
        self._buffers.reverse()
        with memoryview(self._buffers[0])[self._range] as part:
            return self._buffers[0], self._source.readinto(part)

    def close(self) -> None:
        """Do nothing: no thread is running."""


class _ReadAhead:
    """Buffers like _Alternating's, filled ahead by a thread."""

    def __init__(self, source: ByteSource, headroom: int, chunk: int, padding: int) -> None:
        self._source, self._range = source, slice(headroom, headroom + chunk)
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
                with memoryview(buffer)[self._range] as part:
                    size = self._source.readinto(part)
            except BaseException as fault:  # noqa: BLE001 - raised again by `next`, in the waiting thread
                self._fault = fault
            self._full.put((buffer, size))

    def next(self) -> tuple[mmap, int]:
        """Return (buffer, size of the text after its headroom), size 0 at the end. Raises faults of the thread."""
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
