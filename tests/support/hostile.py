"""Files that were made to exhaust a reader, of any size, written piece by piece."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

EVENT = b'{"ph":"X","cat":"kernel","name":"%s","pid":1,"tid":1,"ts":1,"dur":1}'
FIRST = b"[" + EVENT % b"a" + b",\n"

KINDS = ("string", "quotes", "blanks", "levels", "head", "tail", "names", "events")


def pieces(kind: str, size: int) -> Iterator[bytes]:
    """A trace in pieces; what makes it hostile is about `size` bytes long."""
    count = size >> 10
    match kind:
        case "string":
            yield from (FIRST, b'{"ph":"X","name":"', *[b"x" * 1024] * count, b'","ts":1,"dur":1}]')
        case "quotes":
            yield from (FIRST, b'{"ph":"X","x":[', *[b'"",' * 341] * count, b'1],"ts":1,"dur":1}]')
        case "blanks":
            yield from (FIRST, *[b" " * 1024] * count, b"{}]")
        case "levels":
            yield from (FIRST, b'{"ph":"X","ts":1,"dur":1,"x":', *[b"[" * 1024] * count, *[b"]" * 1024] * count)
            yield from (b"},", EVENT % b"b", b"]")
        case "head":
            yield from (b'{"x":"', *[b" " * 1024] * count, b'","traceEvents":[]}')
        case "tail":
            yield from (b'{"traceEvents":', FIRST, EVENT % b"b", b'],"x":"', *[b" " * 1024] * count, b'"}')
        case "names":
            yield from (FIRST, *(EVENT % b"%d" % i + b"," for i in range(size // 80)), EVENT % b"b", b"]")
        case "events":
            yield from (FIRST, *[(EVENT % b"c" + b",") * 14] * count, EVENT % b"b", b"]")


def write(path: Path, kind: str, size: int) -> Path:
    """As a file: gzip, so that a few MB of it are a thousand times as many."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.writelines(pieces(kind, size))
    return path
