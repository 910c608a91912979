"""HTA (Holistic Trace Analysis, the package traceinsight) with traceq's reader in place of its parser."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from traceq.errors import TraceqError, UnreadableInput
from traceq.kineto.read import read_rank
from traceq.runs.read import trace_files

if TYPE_CHECKING:
    from hta.trace_analysis import TraceAnalysis

__all__ = ["analysis", "files_by_rank"]

AnyPath = str | PathLike[str]


def analysis(path: AnyPath | Mapping[int, AnyPath], *, include_last_profiler_step: bool = False) -> TraceAnalysis:
    """Return HTA's TraceAnalysis of a trace, of a folder with one per rank, or of traces by rank.

    It holds what `TraceAnalysis(trace_files=...)` would. Ranks are those in the traces' metadata, else in their names.
    Raises TraceqError without HTA, UnreadableInput without a trace, and what HTA raises on what it cannot read.
    """
    try:
        from traceq.interop.hta.loading import load
    except ImportError as fault:
        raise TraceqError(f"HTA cannot be imported ({fault}): pip install 'traceq-torch[hta]'") from None
    files = path if isinstance(path, Mapping) else files_by_rank(Path(path))
    return load({rank: str(Path(file).absolute()) for rank, file in files.items()}, include_last_profiler_step)


def files_by_rank(path: Path) -> dict[int, Path]:
    """Return the trace files of a path by rank. Raises UnreadableInput unless there is one of each."""
    files: dict[int, Path] = {}
    for file in trace_files(path) if path.is_dir() else [path]:
        if not file.name.endswith((".json", ".gz")):
            raise UnreadableInput(str(file), "HTA does not open files of this name", "*.json or *.json.gz")
        rank = read_rank(file)
        if rank in files:
            raise UnreadableInput(str(file), f"a trace of rank {rank}, like {files[rank].name}", "one trace per rank")
        files[rank] = Path(str(file))
    if not files:
        raise UnreadableInput(str(path), "no trace files", "*.json or *.json.gz")
    return files
