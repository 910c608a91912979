"""Write the tables of a run as Parquet files, one per table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from traceq.errors import UsageFault
from traceq.frames import Frame

__all__ = ["write_parquet"]


def write_parquet(frames: Iterable[Frame], folder: Path) -> None:
    """Write each table as `NAME.parquet` into an existing folder. Raises UsageFault without pyarrow."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise UsageFault("parquet needs pyarrow: pip install pyarrow") from None
    for frame in frames:
        parquet.write_table(frame.to_arrow(), folder / f"{frame.name}.parquet", compression="zstd")
