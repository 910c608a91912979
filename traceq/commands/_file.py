"""Files that commands write: whole or not at all, packed where the name says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import typer

from traceq.errors import TraceqError
from traceq.runs.layout import replaced

igzip: Any
try:
    from isal import igzip
except ImportError:
    import gzip as igzip

__all__ = ["write_page", "written"]

_LEVEL = 2


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A stream into the file, which is there once the block succeeds. Raises TraceqError where it cannot be written."""
    try:
        with replaced(path) as part, part.open("wb") as file:
            if path.suffix == ".gz":
                with igzip.open(file, "wb", _LEVEL) as packed:
                    yield packed
            else:
                yield file
    except OSError as fault:
        raise TraceqError(f"{path}: {(fault.strerror or str(fault)).lower()}") from fault


def write_page(path: Path, page: str) -> None:
    """Write a page and say where. Raises TraceqError where it cannot be written."""
    with written(path) as file:
        file.write(page.encode())
    typer.echo(path)
