"""Bytes of a trace file, decompressed as they are read; a truncated archive ends early and sets `fault`.

They are in a few buffers that are used again; another thread decompresses archives.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from io import BufferedReader
from mmap import mmap
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import SimpleNamespace
from typing import Any

from traceq.errors import TraceqError, UnreadableInput
from traceq.locations import Place, open_binary, stored_bytes, without_secrets

fast_gzip: Any
try:
    from isal import isal_zlib as fast_gzip
except ImportError:
    fast_gzip = None

_GZIP, _ZSTD, _SKIPPABLE = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
_LONGEST_HEADER = 18  # of a zstd frame, in bytes
_PACKED = 1 << 16
_PIECE = 256  # of a damaged zstd file: 64 blocks of 128 KB at most


class ByteSource:
    """File as a stream of uncompressed bytes. `fault` is set when the archive ends early or is damaged."""

    def __init__(
        self, path: Place, file: BufferedReader, readinto: Callable[[Any], int], *damage: type[Exception]
    ) -> None:
        self.path, self.fault = path, ""
        self.is_packed = readinto not in (file.readinto, file.readinto1)
        self.size_bytes = stored_bytes(path, file)
        self._file, self._readinto, self._buffer = file, readinto, page_buffer(1)
        self._damage: tuple[type[Exception], ...] = (EOFError, OSError, UnreadableInput, *damage)

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer and return the number of bytes; 0 at the end, and where an archive or transfer is cut off."""
        try:
            return self._readinto(buffer)
        except self._damage as fault:
            self.fault = getattr(fault, "problem", "") or without_secrets(str(fault)) or type(fault).__name__
            return 0

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; empty at the end."""
        if len(self._buffer) < size:
            self._buffer = page_buffer(size)
        view = memoryview(self._buffer)[:size]
        return bytes(view[: self.readinto(view)])

    def num_read(self) -> int:
        """Return how many bytes of the file, as it is stored, were read; 0 once it is closed. Any thread may ask."""
        try:
            return int(self._file.raw.tell())  # of the raw file: a buffered one is not to be asked while it reads
        except ValueError:
            return 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def page_buffer(size: int) -> mmap:
    """Return memory to read into that starts on a page.

    Copies into buffers that are not page-aligned, as malloc's blocks are not, are about 4x slower.
    """
    return mmap(-1, size)


def open_source(path: Place) -> ByteSource:
    """Open a plain, gzip or zstd file, recognised by its first bytes, never by its name.

    Raises UnreadableInput if there is no file or it is empty, TraceqError if zstandard is needed and missing.
    """
    try:
        file = open_binary(path)
        magic = file.peek(4)[:4]
    except (OSError, ValueError) as fault:
        problem = (getattr(fault, "strerror", "") or without_secrets(str(fault)) or "cannot be opened").lower()
        raise UnreadableInput(str(path), problem, "a trace file") from None
    if not magic:
        file.close()
        raise UnreadableInput(str(path), "the file is empty", "a Kineto trace (JSON)")
    if is_gzip(magic):
        gzip = _Gzip(file, can_rewind=isinstance(path, Path))
        return ByteSource(path, file, gzip.readinto, zlib.error)
    if is_zstd(magic):
        zstandard = _import_zstandard(path)
        with suppress(zstandard.ZstdError):  # the header is cut off or damaged: reading says so
            if zstandard.get_frame_parameters(file.peek(_LONGEST_HEADER)).dict_id:
                file.close()
                raise UnreadableInput(str(path), "packed by zstd with a dictionary", "a file packed without one")
        zstd = _Zstd(zstandard, file, can_rewind=isinstance(path, Path))
        return ByteSource(path, file, zstd.readinto, zstandard.ZstdError)
    return ByteSource(path, file, file.readinto if isinstance(path, Path) else file.readinto1)


def is_gzip(magic: bytes) -> bool:
    """Return whether a file that starts with these four bytes is a gzip file."""
    return magic.startswith(_GZIP)


def is_zstd(magic: bytes) -> bool:
    """Return whether a file that starts with these four bytes is a zstd file; pzstd begins with a frame to skip."""
    return magic.startswith(_ZSTD) or _SKIPPABLE.match(magic) is not None


class _Gzip:
    """Members of a gzip file as one stream, by isal's reader.

    That reader withholds the bytes before a fault: a file on which it fails is read again from the start, piece by
    piece, as far as possible. A file that cannot be read twice is read that way from the beginning.
    """

    def __init__(self, file: BufferedReader, *, can_rewind: bool) -> None:
        self._file, self._packed, self._member = file, b"", _decompressor()
        is_fast = can_rewind and hasattr(fast_gzip, "_GzipReader")
        self._fast: Any = fast_gzip._GzipReader(file, _PACKED) if is_fast else None
        self._num_returned = 0

    def readinto(self, buffer: memoryview) -> int:
        """Fill part of a buffer and return the number of bytes. Raises EOFError where the file is cut off."""
        if self._fast is not None:
            try:
                size = int(self._fast.readinto(buffer))
            except (EOFError, OSError, ValueError, fast_gzip.error):
                self._read_again()
            else:
                self._num_returned += size
                return size
        plain = self._read(len(buffer))
        buffer[: len(plain)] = plain
        return len(plain)

    def _read_again(self) -> None:
        self._fast = None
        self._file.seek(0)
        while self._num_returned and (plain := self._read(min(self._num_returned, _PACKED))):
            self._num_returned -= len(plain)

    def _read(self, size: int) -> bytes:
        while True:
            if self._member.eof:
                self._packed = self._member.unused_data.lstrip(b"\0") or self._file.read1(_PACKED).lstrip(b"\0")
                if not self._packed:
                    return b""
                self._member = _decompressor()
            packed = self._packed or self._file.read1(_PACKED)
            plain, self._packed = self._decompress(packed, size)
            if plain:
                return plain
            if not packed and not self._member.eof:
                raise EOFError("the compressed stream is cut off")

    def _decompress(self, packed: bytes, size: int) -> tuple[bytes, bytes]:
        """Return (up to `size` bytes, what is left of `packed`). Raises zlib.error where nothing is before a fault."""
        before = self._member.copy()
        try:
            return self._member.decompress(packed, size), self._member.unconsumed_tail
        except zlib.error:
            sound = bisect_left(range(len(packed)), True, key=partial(_fails, before, packed, size))
            if sound == 0:
                raise
        self._member = before
        return self._member.decompress(packed[:sound], size), self._member.unconsumed_tail + packed[sound:]


def _fails(member: Any, packed: bytes, size: int, num: int) -> bool:
    """Return whether a fault is within the first `num` + 1 bytes, of which no byte comes out then."""
    try:
        member.copy().decompress(packed[: num + 1], size)
    except zlib.error:
        return True
    return False


def _decompressor() -> Any:
    """Return a decompressor of one gzip member, which checks its length and checksum."""
    return zlib.decompressobj(wbits=31)


class _Zstd:
    """Frames of a zstd file as one stream.

    A file that is damaged is read again from the start, by the byte where the fault is, as no bytes come out of a call
    that fails. Of a file that cannot be read twice those before the fault may be lost.
    """

    def __init__(self, zstandard: Any, file: BufferedReader, *, can_rewind: bool) -> None:
        self._zstandard, self._file, self._can_rewind = zstandard, file, can_rewind
        pieces = SimpleNamespace(read=file.read1)
        self._stream = zstandard.ZstdDecompressor().stream_reader(pieces, read_across_frames=True)
        self._pieces: Iterator[bytes] | None = None
        self._plain = b""
        self._num_returned = 0

    def readinto(self, buffer: memoryview) -> int:
        """Fill part of a buffer and return the number of bytes. Raises ZstdError, EOFError for what is not zstd."""
        if self._pieces is None:
            try:
                size = int(self._stream.readinto1(buffer))
            except self._zstandard.ZstdError:
                if not self._can_rewind:
                    raise
                self._read_again()
            else:
                self._num_returned += size
                if not self._num_returned:
                    raise EOFError("the compressed stream is cut off")
                return size
        assert self._pieces is not None
        while not self._plain and (piece := next(self._pieces, None)) is not None:
            self._plain = piece
        plain, self._plain = self._plain[: len(buffer)], self._plain[len(buffer) :]
        buffer[: len(plain)] = plain
        return len(plain)

    def _read_again(self) -> None:
        num_sound = self._num_sound()
        self._file.seek(0)
        self._pieces = self._decompressed(num_sound)
        while self._num_returned:
            plain = next(self._pieces)
            self._plain = plain[self._num_returned :]
            self._num_returned -= min(self._num_returned, len(plain))

    def _num_sound(self) -> int:
        """Return the number of bytes in the pieces before the one with the fault."""
        self._file.seek(0)
        member, num_sound = self._member(), 0
        with suppress(self._zstandard.ZstdError):
            while piece := self._file.read(_PIECE):
                member.decompress(piece)
                num_sound += len(piece)
        return num_sound

    def _decompressed(self, num_sound: int) -> Iterator[bytes]:
        member = self._member()
        while num_sound > 0:
            piece = self._file.read(min(_PIECE, num_sound))
            num_sound -= len(piece)
            yield member.decompress(piece)
        while byte := self._file.read(1):
            yield member.decompress(byte)
        raise EOFError("the compressed stream is cut off")

    def _member(self) -> Any:
        return self._zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)


def _import_zstandard(path: Place) -> Any:
    try:
        import zstandard
    except ImportError:
        raise TraceqError(f"{path}: zstd needs the package zstandard: pip install 'traceq-torch[zstd]'") from None
    return zstandard


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
