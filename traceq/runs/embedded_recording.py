"""Recording data embedded in a trace, so that one copied file can be diffed with a verdict.

It is the value of the trace's top-level key `traceq`, as base64 of JSON: Kineto corrupts quotes in metadata.
Format 1 (2026): manifest, arm, pairs (`num_looks`, then 1, CPU times and events may be absent), processes (may be
absent), lines; `lines.table` holds runs of [line, count], `lines.between` (may be absent) runs of [parts, count], each
part [line, percent].
"""

from __future__ import annotations

import base64
import binascii
from itertools import groupby
from typing import Annotated, Any, get_args, get_origin

import msgspec
import numpy as np
from msgspec import Meta

from traceq.errors import UnreadableInput
from traceq.frozen import frozen
from traceq.model import Manifest, Pairs, Processes, SourceLines
from traceq.runs.run_folder import check_manifest, to_json_bytes
from traceq.runs.step_log import EXACT, Count
from traceq.short_texts import without_module

KEY = "traceq"
FORMAT = 1
_FEW_OPS = 1000  # beyond what the trace has: of one that was cut


@frozen(eq=False)
class Embedded:
    """Facts about a run in one of its traces.

    They are all ranks' unprofiled pairs, or the processes that had run by then, and the Python lines of the trace's
    rank.
    """

    manifest: Manifest
    arm: str
    pairs: tuple[Pairs, ...] = ()
    lines: SourceLines | None = None
    processes: tuple[Processes, ...] = ()


class _Lines(msgspec.Struct):
    lines: list[str]
    table: dict[str, list[tuple[int, Count]]]
    between: dict[str, list[tuple[list[tuple[int, Annotated[int, Meta(ge=0, le=100)]]], Count]]] = {}


class _Document(msgspec.Struct):
    format: int
    manifest: Manifest
    arm: str
    pairs: tuple[Pairs, ...]
    processes: tuple[Processes, ...] = ()
    lines: _Lines | None = None


def encode(embedded: Embedded) -> str:
    """Return base64 text, safe as a Kineto metadata value once quoted."""
    document = {
        "format": FORMAT,
        "manifest": embedded.manifest,
        "arm": embedded.arm,
        "pairs": embedded.pairs,
        "processes": embedded.processes,
        "lines": None if embedded.lines is None else _packed(embedded.lines),
    }
    return base64.b64encode(to_json_bytes(document)).decode("ascii")


def decode(text: str, *, num_events: int = 1 << 20) -> Embedded:
    """Return the value that `encode` was called with, of a trace with this many events.

    Raises UnreadableInput if damaged, of a newer format, or with more lines than the trace can have ops.
    """
    try:
        data = base64.b64decode(text, validate=True)
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw])["format"]
        if int(bytes(version)) > FORMAT:
            raise UnreadableInput("traceq metadata", f"format {bytes(version).decode()}", f"at most {FORMAT}")
        document = msgspec.json.decode(data, type=_Document, dec_hook=_as_array)
        check_manifest(document.manifest)
        _check_shapes(document)
        return Embedded(
            manifest=document.manifest,
            arm=document.arm,
            pairs=document.pairs,
            lines=None if document.lines is None else _unpacked(document.lines, 2 * num_events + _FEW_OPS),
            processes=document.processes,
        )
    except (binascii.Error, msgspec.MsgspecError, KeyError, ValueError, RecursionError) as fault:
        raise UnreadableInput("traceq metadata", f"{type(fault).__name__}: {fault}", "base64 of JSON") from fault


def _packed(lines: SourceLines) -> _Lines:
    table = {key: [(line, len(list(run))) for line, run in groupby(numbers)] for key, numbers in lines.table.items()}
    between = {
        key: [(list(parts), len(list(run))) for parts, run in groupby(times)] for key, times in lines.between.items()
    }
    return _Lines(list(lines.lines), table, between)


def _unpacked(lines: _Lines, most: int) -> SourceLines:
    """Return the lines by occurrence. Raises ValueError for an unknown line, and for more than `most` occurrences."""
    runs = [run for runs in lines.table.values() for run in runs]
    parts_runs = [run for runs in lines.between.values() for run in runs]
    named = [*(line for line, _ in runs), *(line for parts, _ in parts_runs for line, _ in parts)]
    if not all(0 <= line < len(lines.lines) for line in named):
        raise ValueError("a line that is not listed")
    num = sum(count for _, count in runs) + sum(max(len(parts), 1) * count for parts, count in parts_runs)
    if num > 4 * most:
        raise ValueError(f"{num:,} lines in a trace of at most {most:,} ops")
    table = {key: tuple(line for line, count in runs for _ in range(count)) for key, runs in lines.table.items()}
    between = {
        key: tuple(tuple(parts) for parts, count in runs for _ in range(count)) for key, runs in lines.between.items()
    }
    return SourceLines(tuple(map(without_module, lines.lines)), table, between)


def _as_array(type_: type, value: Any) -> object:
    """Return lists of whole numbers, or of truths, as an array of a field's dtype. Raises ValueError for others."""
    if get_origin(type_) is not np.ndarray:
        raise NotImplementedError(str(type_))
    (dtype,) = get_args(get_args(type_)[1])
    column = np.array(value)
    if not isinstance(value, list) or (column.size and column.dtype != dtype):
        raise ValueError("a list of other values")
    if column.size and dtype is np.int64 and np.abs(column).max() > EXACT:
        raise ValueError("a number that is too large")
    return column.astype(dtype)


def _check_shapes(document: _Document) -> None:
    """Raise ValueError for columns of unequal length, and for negative numbers of events."""
    for pairs in document.pairs:
        shape = len(pairs.first_ns), len(pairs.b_second)
        times = (pairs.first_ns, pairs.second_ns, pairs.first_cpu_ns, pairs.second_cpu_ns)
        if pairs.b_second.ndim != 1 or any(each is not None and each.shape != shape for each in times):
            raise ValueError("pairs of unequal length")
        if (events := pairs.events) is not None:
            of_kinds = events.num, events.ns, events.counted_ns
            if any(each.shape != (*shape, 2, len(events.kinds)) or (each < 0).any() for each in of_kinds):
                raise ValueError("events of other pairs")
            if any(each.shape != (*shape, 2) for each in (events.num_steps, events.brought)):
                raise ValueError("events of other pairs")
    for each in document.processes:
        columns = each.process, each.median_ns, each.num_steps, each.peak_bytes
        if {column.shape for column in columns} != {(each.process.size,)}:
            raise ValueError("processes of unequal length")
