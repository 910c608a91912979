"""Bytes of a trace file, decompressed as they are read; a cut-off archive ends early and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from traceq.errors import TraceqError, UnreadableInput

unzip: Any
try:
    from isal import isal_zlib as unzip
except ImportError:
    import zlib as unzip

__all__ = ["Source", "open_source"]

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_PACKED = 1 << 16


class Source:
    """A file as a stream of plain bytes. `fault` is set when the archive ends early or is damaged."""

    def __init__(self, path: Path, file: BinaryIO, stream: Any, *damage: type[Exception]) -> None:
        self.path, self.fault = path, ""
        self._file, self._stream = file, stream
        self._damage: tuple[type[Exception], ...] = (EOFError, OSError, ValueError, *damage)

    @property
    def is_packed(self) -> bool:
        """Whether the file is an archive."""
        return self._stream is not self._file

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, as many as there are at once; empty at the end, or where an archive is cut off.

        One read at a time: a longer one would lose what it has when an archive turns out to be cut off.
        """
        try:
            plain: bytes = self._stream.read1(size)
        except self._damage as fault:
            self.fault = str(fault) or type(fault).__name__
            return b""
        return plain

    def readinto(self, room: memoryview) -> int:
        """The same into a buffer; how many bytes it was, 0 at the end."""
        if not self.is_packed:
            try:
                return int(self._file.readinto(room))
            except OSError:
                pass  # read() meets the same fault, and notes it
        plain = self.read(len(room))
        room[: len(plain)] = plain
        return len(plain)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self._file.close()


def open_source(path: Path) -> Source:
    """Open a plain, gzip or zstd file, told apart by its first bytes, never by its name.

    Raises UnreadableInput where there is no file, it is empty, or zstandard is needed and missing.
    """
    try:
        file = path.open("rb")
    except OSError as fault:
        raise UnreadableInput(str(path), (fault.strerror or "cannot be opened").lower(), "a trace file") from None
    magic = file.peek(4)[:4]
    if not magic:
        file.close()
        raise UnreadableInput(str(path), "the file is empty", "a Kineto trace (JSON)")
    if magic.startswith(_GZIP):
        return Source(path, file, _Gzip(file), unzip.error)
    if magic.startswith(_ZSTD):
        zstandard = _import_zstandard(path)
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return Source(path, file, stream, zstandard.ZstdError)
    return Source(path, file, file)


class _Gzip:
    """The members of a gzip file as one stream. Gives all that stands before a cut; a gzip.GzipFile keeps back the
    last 128 KiB."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._packed, self._member = file, b"", _decompressor()

    def read1(self, size: int) -> bytes:
        """Some plain bytes, at most `size`; empty at the end. Raises EOFError where the file is cut off."""
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

    def close(self) -> None:
        """The file is closed by its owner."""


def _decompressor() -> Any:
    """Of one gzip member; checks its length and its checksum."""
    return unzip.decompressobj(wbits=31)


def _import_zstandard(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise TraceqError(f"{path}: zstd needs the package zstandard: pip install 'traceq-torch[zstd]'") from None
    return zstandard
