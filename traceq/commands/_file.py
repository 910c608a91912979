"""Files that commands write: whole or not at all, packed where the name says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from traceq.errors import TraceqError, UsageFault
from traceq.locations import place
from traceq.runs.run_folder import atomic_write

igzip: Any
try:
    from isal import igzip
except ImportError:
    import gzip as igzip

__all__ = ["open_replacing", "refuse_input"]

_LEVEL = 2


def refuse_input(target: Path, paths: Iterable[str | None]) -> None:
    """Raise UsageFault if what is to be written is one of these inputs."""
    for path in paths:
        where = place(path) if path else None
        if isinstance(where, Path) and where.exists() and target.exists() and target.samefile(where):
            raise UsageFault(f"{target} is read, and would be replaced; name another file")


@contextmanager
def open_replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a stream into a new file that takes the path's place once the block succeeds.

    Raises TraceqError where it cannot be written.
    """
    try:
        with atomic_write(path) as part, part.open("wb") as file:
            if path.suffix == ".gz":
                with igzip.open(file, "wb", _LEVEL) as packed:
                    yield packed
            else:
                yield file
    except OSError as fault:
        raise TraceqError(f"{path}: {(fault.strerror or str(fault)).lower()}") from fault
