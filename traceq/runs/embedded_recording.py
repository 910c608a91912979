"""Recording data embedded in a trace, so that one copied file can be diffed with a verdict.

It is the value of the trace's top-level key `traceq`, as base64 of JSON: Kineto corrupts quotes in metadata.
Format 1 (2026): manifest, arm, pairs (`num_looks`, then 1, and CPU times may be absent), processes (may be absent),
lines; `lines.table` holds runs of [line, count].
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from itertools import groupby

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.errors import UnreadableInput
from traceq.model import Manifest, Pairs, Processes, SourceLines
from traceq.runs.run_folder import to_json_bytes

__all__ = ["KEY", "Embedded", "decode", "encode"]

KEY = "traceq"
FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
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


class _Pairs(msgspec.Struct):
    a: str
    b: str
    b_second: list[bool]
    first_ns: list[list[int]]
    second_ns: list[list[int]]
    num_looks: int = 1
    first_cpu_ns: list[list[int]] | None = None
    second_cpu_ns: list[list[int]] | None = None


class _Processes(msgspec.Struct):
    arm: str
    process: list[int]
    median_ns: list[int]
    num_steps: list[int]
    peak_bytes: list[int]


class _Lines(msgspec.Struct):
    lines: list[str]
    table: dict[str, list[tuple[int, int]]]


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


def decode(text: str) -> Embedded:
    """Return the value that `encode` was called with. Raises UnreadableInput if damaged or of a newer format."""
    try:
        data = base64.b64decode(text, validate=True)
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw])["format"]
        if int(bytes(version)) > FORMAT:
            raise UnreadableInput("traceq metadata", f"format {bytes(version).decode()}", f"at most {FORMAT}")
        document = msgspec.json.decode(data, type=_Document)
    except (binascii.Error, msgspec.MsgspecError, KeyError, ValueError) as fault:
        raise UnreadableInput("traceq metadata", f"{type(fault).__name__}: {fault}", "base64 of JSON") from fault
    return Embedded(
        manifest=document.manifest,
        arm=document.arm,
        pairs=tuple(_unpacked_pairs(pairs) for pairs in document.pairs),
        lines=None if document.lines is None else _unpacked(document.lines),
        processes=tuple(_unpacked_processes(processes) for processes in document.processes),
    )


def _packed(lines: SourceLines) -> _Lines:
    table = {key: [(line, len(list(run))) for line, run in groupby(numbers)] for key, numbers in lines.table.items()}
    return _Lines(list(lines.lines), table)


def _unpacked(lines: _Lines) -> SourceLines:
    table = {key: tuple(line for line, count in runs for _ in range(count)) for key, runs in lines.table.items()}
    return SourceLines(tuple(lines.lines), table)


def _unpacked_pairs(pairs: _Pairs) -> Pairs:
    return Pairs(
        a=pairs.a,
        b=pairs.b,
        b_second=np.array(pairs.b_second, np.bool_),
        first_ns=np.array(pairs.first_ns, np.int64),
        second_ns=np.array(pairs.second_ns, np.int64),
        num_looks=pairs.num_looks,
        first_cpu_ns=_or_none(pairs.first_cpu_ns),
        second_cpu_ns=_or_none(pairs.second_cpu_ns),
    )


def _unpacked_processes(processes: _Processes) -> Processes:
    columns = processes.process, processes.median_ns, processes.num_steps, processes.peak_bytes
    return Processes(processes.arm, *(np.array(column, np.int64) for column in columns))


def _or_none(times: list[list[int]] | None) -> NDArray[np.int64] | None:
    return None if times is None else np.array(times, np.int64)
