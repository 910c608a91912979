"""Bytes of a trace file, decompressed as they are read; a cut-off archive ends early and says so."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any

from traceq.errors import TraceqError, UnreadableInput
from traceq.locations import Place, faults, opened

unzip: Any
try:
    from isal import isal_zlib as unzip
except ImportError:
    import zlib as unzip

__all__ = ["ByteSource", "open_source", "page_buffer"]

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_PACKED = 1 << 16


class ByteSource:
    """A file as a stream of plain bytes. `fault` is set when the archive ends early or is damaged."""

    def __init__(
        self, path: Place, file: BufferedReader, readinto: Callable[[Any], int], *damage: type[Exception]
    ) -> None:
        self.path, self.fault = path, ""
        self.is_packed = readinto != file.readinto
        self.size_bytes = _size(path, file)
        self._file, self._readinto, self._room = file, readinto, page_buffer(1)
        self._damage: tuple[type[Exception], ...] = (EOFError, *faults(), *damage)

    def readinto(self, room: memoryview) -> int:
        """How many plain bytes it put there; 0 at the end, or where an archive breaks off."""
        try:
            return self._readinto(room)
        except self._damage as fault:
            self.fault = str(fault) or type(fault).__name__
            return 0

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; empty at the end."""
        if len(self._room) < size:
            self._room = page_buffer(size)
        view = memoryview(self._room)[:size]
        return bytes(view[: self.readinto(view)])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def page_buffer(size: int) -> mmap.mmap:
    """Memory to read into, which starts on a page: to where no line of the cache starts the kernel copies at a quarter
    of the speed, and that is where malloc's blocks are.
    """
    return mmap.mmap(-1, size)


def open_source(path: Place) -> ByteSource:
    """Open a plain, gzip or zstd file, told apart by its first bytes, never by its name.

    Raises UnreadableInput where there is no file, it is empty, or zstandard is needed and missing.
    """
    try:
        file = opened(path)
        magic = file.peek(4)[:4]
    except faults() as fault:
        found = (getattr(fault, "strerror", "") or str(fault) or "cannot be opened").lower()
        raise UnreadableInput(str(path), found, "a trace file") from None
    if not magic:
        file.close()
        raise UnreadableInput(str(path), "the file is empty", "a Kineto trace (JSON)")
    if magic.startswith(_GZIP):
        gzip = _Gzip(file, can_return=isinstance(path, Path))
        return ByteSource(path, file, gzip.readinto, unzip.error)
    if magic.startswith(_ZSTD):
        zstandard = _import_zstandard(path)
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return ByteSource(path, file, stream.readinto1, zstandard.ZstdError)
    return ByteSource(path, file, file.readinto)


def _size(path: Place, file: BufferedReader) -> int:
    """Bytes of the file, packed where it is packed; 0 where nobody knows beforehand."""
    return os.fstat(file.fileno()).st_size if isinstance(path, Path) else int(getattr(file.raw, "size", 0) or 0)


class _Gzip:
    """The members of a gzip file as one stream, by isal's own reader. That one keeps back what stands before a cut: a
    file that it refuses is read again, as far as it goes, piece by piece; one to whose start there is no return is
    read that way at once.
    """

    def __init__(self, file: BufferedReader, *, can_return: bool) -> None:
        self._file, self._packed, self._member = file, b"", _decompressor()
        is_fast = can_return and hasattr(unzip, "_GzipReader")
        self._fast: Any = unzip._GzipReader(file, _PACKED) if is_fast else None
        self._given = 0

    def readinto(self, room: memoryview) -> int:
        """Some plain bytes; how many. Raises EOFError where the file is cut off."""
        if self._fast is not None:
            try:
                size = int(self._fast.readinto(room))
            except (EOFError, OSError, ValueError, unzip.error):
                self._read_again()
            else:
                self._given += size
                return size
        plain = self._read(len(room))
        room[: len(plain)] = plain
        return len(plain)

    def _read_again(self) -> None:
        self._fast = None
        self._file.seek(0)
        while self._given and (plain := self._read(min(self._given, _PACKED))):
            self._given -= len(plain)

    def _read(self, size: int) -> bytes:
        while True:
            if self._member.eof:
                self._packed = self._member.unused_data.lstrip(b"\0") or self._file.read(_PACKED).lstrip(b"\0")
                if not self._packed:
                    return b""
                self._member = _decompressor()
            packed = self._packed or self._file.read(_PACKED)
            plain: bytes = self._member.decompress(packed, size)
            self._packed = self._member.unconsumed_tail
            if plain:
                return plain
            if not packed and not self._member.eof:
                raise EOFError("the compressed stream is cut off")


def _decompressor() -> Any:
    """Of one gzip member; checks its length and its checksum."""
    return unzip.decompressobj(wbits=31)


def _import_zstandard(path: Place) -> Any:
    try:
        import zstandard
    except ImportError:
        raise TraceqError(f"{path}: zstd needs the package zstandard: pip install 'traceq-torch[zstd]'") from None
    return zstandard
