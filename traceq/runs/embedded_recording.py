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
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from traceq.errors import UnreadableInput
from traceq.frozen import frozen
from traceq.model import EventKind, Manifest, PairedEvents, Pairs, Processes, SourceLines
from traceq.runs.run_folder import check_manifest, to_json_bytes
from traceq.runs.step_log import Count, Number
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


_Halves: TypeAlias = list[list[list[Number]]]


class _Events(msgspec.Struct):
    kinds: list[EventKind]
    num: list[list[list[list[Count]]]]
    ns: list[list[list[list[Count]]]]
    counted_ns: list[list[list[list[Count]]]]
    num_steps: _Halves
    brought: _Halves


class _Pairs(msgspec.Struct):
    a: str
    b: str
    b_second: list[bool]
    first_ns: list[list[Number]]
    second_ns: list[list[Number]]
    num_looks: int = 1
    first_cpu_ns: list[list[Number]] | None = None
    second_cpu_ns: list[list[Number]] | None = None
    events: _Events | None = None


class _Processes(msgspec.Struct):
    arm: str
    process: list[Number]
    median_ns: list[Number]
    num_steps: list[Number]
    peak_bytes: list[Number]


class _Lines(msgspec.Struct):
    lines: list[str]
    table: dict[str, list[tuple[int, Count]]]
    between: dict[str, list[tuple[list[tuple[int, Annotated[int, Meta(ge=0, le=100)]]], Count]]] = {}


class _Document(msgspec.Struct):
    format: int
    manifest: Manifest
    arm: str
    pairs: list[_Pairs]
    processes: list[_Processes] = []
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
        document = msgspec.json.decode(data, type=_Document)
        check_manifest(document.manifest)
        return Embedded(
            manifest=document.manifest,
            arm=document.arm,
            pairs=tuple(_unpacked_pairs(pairs) for pairs in document.pairs),
            lines=None if document.lines is None else _unpacked(document.lines, 2 * num_events + _FEW_OPS),
            processes=tuple(_unpacked_processes(processes) for processes in document.processes),
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


def _unpacked_pairs(pairs: _Pairs) -> Pairs:
    times = [table for table in (pairs.first_ns, pairs.second_ns, pairs.first_cpu_ns, pairs.second_cpu_ns) if table]
    if {len(rank) for table in times for rank in table} - {len(pairs.b_second)} or len({*map(len, times)}) > 1:
        raise ValueError("pairs of unequal length")
    return Pairs(
        a=pairs.a,
        b=pairs.b,
        b_second=np.array(pairs.b_second, np.bool_),
        first_ns=np.array(pairs.first_ns, np.int64),
        second_ns=np.array(pairs.second_ns, np.int64),
        num_looks=pairs.num_looks,
        first_cpu_ns=_or_none(pairs.first_cpu_ns),
        second_cpu_ns=_or_none(pairs.second_cpu_ns),
        events=_unpacked_events(pairs.events, (len(pairs.first_ns), len(pairs.b_second), 2)) if pairs.events else None,
    )


def _unpacked_events(events: _Events, halves: tuple[int, int, int]) -> PairedEvents:
    """Return the events of halves of that shape. Raises ValueError for another one."""
    of_kinds = [np.array(column, np.int64) for column in (events.num, events.ns, events.counted_ns)]
    of_halves = [np.array(column, np.int64) for column in (events.num_steps, events.brought)]
    if {column.shape for column in of_kinds} != {(*halves, len(events.kinds))} or any(
        column.shape != halves for column in of_halves
    ):
        raise ValueError("events of other pairs")
    return PairedEvents(tuple(events.kinds), *of_kinds, *of_halves)


def _unpacked_processes(processes: _Processes) -> Processes:
    columns = processes.process, processes.median_ns, processes.num_steps, processes.peak_bytes
    if len({*map(len, columns)}) > 1:
        raise ValueError("processes of unequal length")
    return Processes(processes.arm, *(np.array(column, np.int64) for column in columns))


def _or_none(times: list[list[Number]] | None) -> NDArray[np.int64] | None:
    return None if times is None else np.array(times, np.int64)
