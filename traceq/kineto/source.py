"""Bytes of a trace file, decompressed as they are read; a cut-off archive ends early and says so."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from traceq.errors import TraceqError, UnreadableInput

__all__ = ["Source", "open_source"]

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Source:
    """A file as a stream of plain bytes. `fault` is set when the archive ends early or is damaged."""

    def __init__(self, path: Path, file: BinaryIO, stream: BinaryIO) -> None:
        self.path, self.fault = path, ""
        self._file, self._stream = file, stream

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; empty at the end, or where an archive is cut off."""
        try:
            return self._stream.read(size)
        except (EOFError, OSError, zlib.error, ValueError) as fault:
            self.fault = str(fault) or type(fault).__name__
            return b""

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
        return Source(path, file, _open_gzip(file))
    if magic.startswith(_ZSTD):
        return Source(path, file, _open_zstd(path, file))
    return Source(path, file, file)


def _open_gzip(file: BinaryIO) -> BinaryIO:
    try:
        from isal import igzip
    except ImportError:
        import gzip

        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    unzip: Any = igzip.GzipFile
    return cast(BinaryIO, unzip(fileobj=file))


def _open_zstd(path: Path, file: BinaryIO) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        raise TraceqError(f"{path}: zstd needs the package zstandard: pip install 'traceq-torch[zstd]'") from None
    reader: Callable[..., BinaryIO] = zstandard.ZstdDecompressor().stream_reader
    return reader(file, read_across_frames=True)
