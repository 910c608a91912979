"""The store: one folder or URL with a Parquet file per append, a row per run and measure; several write it at once.

A file is named by time and chance, and appears whole (renamed, or put as one object), so that writers need no lock and
one that is killed leaves at most a temporary file, which nobody reads. Nothing is changed or deleted: of a run that is
added again the last rows count, and of a tag the last one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from traceq.entry_points import import_or_fault
from traceq.errors import TraceqError, UnreadableInput
from traceq.frozen import frozen
from traceq.locations import Place, Remote, read_whole
from traceq.model import Caveat
from traceq.runs.run_folder import atomic_write

_VERSION = 1
_VERSION_KEY = b"traceq.history"
_SUFFIX, _TAGS = ".parquet", "tags"
_MOST = 64 << 20
"""Bytes of a file; one append of a run has about 6,000."""


class Environment(TypedDict):
    """Fields of a row that say where the run ran."""

    device: str
    torch: str
    driver: str
    clock_mhz: int
    host: str
    cpu: str
    num_ranks: int


@frozen
class Row:
    """A measure of a run: `value`, and `low` to `high`, its 95 % interval where there is one, in a `unit`.

    `rank` is the one that the value is of, None if of all. `time` is the begin of the run, in UTC. `path` of the run is
    relative to the store if it is inside. The rest is where it ran; "" and 0 are unknown.
    """

    run_id: str
    time: datetime
    branch: str
    commit: str
    arm: str
    path: str
    measure: str
    rank: int | None
    value: float
    low: float | None
    high: float | None
    unit: str
    device: str = ""
    torch: str = ""
    driver: str = ""
    clock_mhz: int = 0
    host: str = ""
    cpu: str = ""
    num_ranks: int = 0


@frozen
class StoredRows:
    """Rows of a store, in the order in which they were added, and a doubt for each file that cannot be read."""

    rows: tuple[Row, ...]
    caveats: tuple[Caveat, ...] = ()


def append(store: Place, rows: Sequence[Row]) -> str:
    """Add rows as one file, which is there in whole once this returns; return its name. Raises TraceqError."""
    arrow, parquet = import_or_fault("pyarrow"), import_or_fault("pyarrow.parquet")
    schema = _schema(arrow).with_metadata({_VERSION_KEY: str(_VERSION).encode()})
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_pylist(list(map(asdict, rows)), schema=schema), sink)
    return _write(store, _SUFFIX, sink.getvalue().to_pybytes())


def append_tag(store: Place, tag: str, run_id: str) -> None:
    """Let a tag name a run from now on. Raises TraceqError."""
    _write(store / _TAGS, ".json", msgspec.json.encode({"tag": tag, "run_id": run_id}))


def read_rows(store: Place) -> StoredRows:
    """Return all rows. Raises UnreadableInput where there is no store, or one of a newer version."""
    if not store.is_dir():
        raise UnreadableInput(str(store), "no such folder", "a store; `traceq history add RUN` makes one")
    rows: list[Row] = []
    caveats: list[Caveat] = []
    for file in _files(store, _SUFFIX):
        try:
            rows += _rows_of(file)
        except (OSError, ValueError, KeyError) as fault:  # pyarrow's errors are such
            reason = str(fault).partition("\n")[0]
            caveats.append(Caveat("unreadable_rows", f"{file}: cannot be read, and is left out: {reason}"))
    return StoredRows(tuple(rows), tuple(caveats))


def read_tags(store: Place) -> dict[str, str]:
    """Return the run that each tag names, by its identity. Raises UnreadableInput."""
    folder = store / _TAGS
    tags: dict[str, str] = {}
    for file in _files(folder, ".json") if folder.is_dir() else ():
        try:
            each = msgspec.json.decode(read_whole(file, _MOST), type=dict[str, str])
            tags[each["tag"]] = each["run_id"]
        except (OSError, msgspec.MsgspecError, KeyError) as fault:
            raise UnreadableInput(str(file), str(fault), "a tag and its run") from None
    return tags


def _files(folder: Place, suffix: str) -> Iterator[Place]:
    """Yield the files of a kind in the order of their names, which begin with the time."""
    names: list[Any] = [file for file in folder.iterdir() if file.name.endswith(suffix) and file.name[0] != "."]
    yield from sorted(names, key=lambda file: str(file.name))


def _rows_of(file: Place) -> list[Row]:
    arrow, parquet = import_or_fault("pyarrow"), import_or_fault("pyarrow.parquet")
    content = arrow.BufferReader(read_whole(file, _MOST))
    table = parquet.ParquetFile(content).read(use_threads=False)  # `read_table` takes four times as long
    version = int((table.schema.metadata or {}).get(_VERSION_KEY, b"0"))
    if version > _VERSION:
        raise UnreadableInput(str(file), f"version {version}", f"at most {_VERSION}: a newer traceq wrote it")
    if not version:
        raise ValueError("not written by traceq")
    return [Row(**each) for each in table.select([each.name for each in fields(Row)]).to_pylist()]


def _schema(arrow: Any) -> Any:
    """Return the types of the columns: those of the fields of a row."""
    by_type = {"str": arrow.string(), "datetime": arrow.timestamp("us"), "int": arrow.int64(), "float": arrow.float64()}
    return arrow.schema([(each.name, by_type[str(each.type).partition(" ")[0]]) for each in fields(Row)])


def _write(folder: Place, suffix: str, content: bytes) -> str:
    """Write a new file whole; return its name."""
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{os.urandom(6).hex()}{suffix}"
    if isinstance(folder, Remote):
        (folder / name).write(content)
        return name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / name) as part:
            Path(part).write_bytes(content)
    except OSError as fault:
        raise TraceqError(f"{folder}: {(fault.strerror or str(fault)).lower()}") from fault
    return name
