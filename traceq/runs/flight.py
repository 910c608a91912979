"""A flight recorder's dump, `rank<r>.flight.json`, as a Flight: which collectives a rank issued, by sequence number.

The dump is what torch's `_dump_fr_trace_json` and `_dump_nccl_trace_json` give (versions 2.x): `entries`, each with
`process_group` [name, description], `collective_seq_id`, `profiling_name`, sizes, dtypes and `time_created_ns`; in
`pg_config` the ranks of each group.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from traceq.errors import UnreadableInput
from traceq.kineto.messages import dtype_name
from traceq.model import Flight

__all__ = ["flight_rank", "read_flight"]

_NAME = re.compile(r"^rank[-_]?(\d{1,9})\.flight\.json$")


class _Entry(msgspec.Struct):
    process_group: list[str] = []
    collective_seq_id: int = -1
    is_p2p: bool = False
    profiling_name: str = ""
    input_sizes: list[list[int]] = []
    output_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    time_created_ns: int = -1


class _Group(msgspec.Struct):
    ranks: str | list[int] = ""


class _Dump(msgspec.Struct):
    entries: list[_Entry]
    pg_config: dict[str, _Group] = {}


_decode = msgspec.json.Decoder(_Dump, strict=False).decode


def flight_rank(path: Path) -> int:
    """Rank of a dump by the file's name; -1 where it is none."""
    found = _NAME.match(path.name)
    return int(found[1]) if found else -1


def read_flight(path: Path) -> Flight:
    """The collectives of a dump, by (group, sequence). Raises UnreadableInput."""
    try:
        dump = _decode(path.read_bytes())
    except OSError as fault:
        raise UnreadableInput(str(path), fault.strerror or str(fault), "a flight recorder's dump") from fault
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise UnreadableInput(str(path), str(fault), "a flight recorder's dump") from fault
    members = {name: str(group.ranks) for name, group in dump.pg_config.items()}
    kept = [entry for entry in dump.entries if not entry.is_p2p and 0 <= entry.collective_seq_id < 2**62]
    kept.sort(key=lambda entry: (_group(entry), entry.collective_seq_id))
    return Flight(
        path=str(path),
        rank=flight_rank(path),
        group=tuple(_group(entry) for entry in kept),
        members=tuple(members.get(_group(entry), "") for entry in kept),
        name=tuple(entry.profiling_name for entry in kept),
        dtype=tuple(dtype_name(entry.input_dtypes[0]) if entry.input_dtypes else "" for entry in kept),
        sequence=_column(entry.collective_seq_id for entry in kept),
        elements=_column(_elements(entry) for entry in kept),
        created_ns=_column(entry.time_created_ns for entry in kept),
    )


def _column(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([value if abs(value) < 2**62 else -1 for value in values], np.int64)


def _group(entry: _Entry) -> str:
    """Name of the group, the same on all its ranks."""
    return entry.process_group[0] if entry.process_group else ""


def _elements(entry: _Entry) -> int:
    """Elements of the larger side, -1 where no sizes were recorded."""
    sides = [sum(map(prod, sizes)) for sizes in (entry.input_sizes, entry.output_sizes) if sizes]
    return max(sides, default=-1)
