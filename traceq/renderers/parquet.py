"""Write the tables of a run as Parquet files, one per table."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from traceq.entry_points import import_or_fault
from traceq.frames import Frame


def write_parquet(frames: Iterable[Frame], folder: Path) -> None:
    """Write each table as `NAME.parquet` into an existing folder; those of one name follow each other in its file.

    Raises TraceqError without pyarrow.
    """
    parquet = import_or_fault("pyarrow.parquet", "pyarrow")
    writers: dict[str, Any] = {}
    with ExitStack() as stack:
        for frame in frames:
            table = frame.to_arrow()
            if frame.name not in writers:
                file = parquet.ParquetWriter(folder / f"{frame.name}.parquet", table.schema, compression="zstd")
                writers[frame.name] = stack.enter_context(file)
            writers[frame.name].write_table(table)
