"""Reader of flight recorder dumps: the collectives that a rank issued, by sequence number, and their state.

Dumps are the JSON of torch's `_dump_fr_trace_json` and `_dump_nccl_trace_json`, which recordings of traceq store as
`rank<r>.flight.json`, and the pickles that NCCL's watchdog writes as `nccl_trace_rank_<r>` (versions 2.x): `entries`,
each with `process_group` [name, description], `collective_seq_id`, `profiling_name`, sizes, dtypes, `state`, `frames`
and `time_created_ns`; in `pg_config` the ranks of each group.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from math import prod
from typing import Any

import msgspec
import numpy as np

from traceq.errors import UnreadableInput
from traceq.facts.timeline.call_sites import user_line
from traceq.kineto.collective_messages import dtype_name
from traceq.locations import Most, Place, open_binary, read_whole
from traceq.model import Caveat, Flight
from traceq.runs.memory_snapshot import is_memory_snapshot
from traceq.runs.plain_pickle import PickleRefused, load_plain
from traceq.short_texts import capped

_WINDOW = re.compile(r"^rank[-_]?(\d{1,9})\.flight\.json$")
_PICKLED = re.compile(r"^[^.].*?(\d{1,9})(\.pkl|\.pickle|\.bin)?$")
_MAGIC = b"\x80"
_EXPECTED = "a flight recorder's dump"


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Entry(msgspec.Struct):
    process_group: list[str] = []
    pg_id: int = -1
    collective_seq_id: int = -1
    seq_id: int = -1  # up to 2.1
    is_p2p: bool = False
    profiling_name: str = ""
    input_sizes: list[list[int]] = []
    output_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    time_created_ns: int = -1
    state: str = ""
    retired: bool = False
    frames: list[_Frame] = []

    @property
    def sequence(self) -> int:
        return self.collective_seq_id if self.collective_seq_id >= 0 else self.seq_id

    @property
    def group(self) -> str:
        """Name of the group, the same on all its ranks; its id if it has none, else ""."""
        return self.process_group[0] if self.process_group else str(self.pg_id) if self.pg_id >= 0 else ""


class _Group(msgspec.Struct):
    ranks: str | list[int] = ""


class _Dump(msgspec.Struct):
    entries: list[_Entry]
    pg_config: dict[str, _Group] = {}
    waits_at: str = ""


_decode = msgspec.json.Decoder(_Dump, strict=False).decode


def flight_rank(path: Place) -> int:
    """Return the rank of a dump by its file name; -1 if that is not the name of a dump."""
    match = _WINDOW.match(path.name) or _PICKLED.match(path.name)
    return int(match[1]) if match else -1


def is_flight(path: Place) -> bool:
    """Return whether a file is a dump: by its name, and of a pickle also by its first bytes."""
    if _WINDOW.match(path.name):
        return True
    if not (_PICKLED.match(path.name) and path.is_file()):
        return False
    with open_binary(path) as file:
        is_pickle = file.read(1) == _MAGIC
    return is_pickle and not is_memory_snapshot(path)


def read_flights(folder: Place, ranks: Collection[int] | None) -> tuple[tuple[Flight, ...], list[Caveat]]:
    """Return the dumps of a folder by rank, all or of some ranks, and a caveat per dump that cannot be read."""
    files = sorted((flight_rank(file), file) for file in folder.iterdir() if is_flight(file))
    flights, caveats = [], []
    for rank, file in files:
        try:
            flights += [read_flight(file)] if ranks is None or rank in ranks else []
        except UnreadableInput as fault:
            caveats.append(Caveat("unreadable_flight", str(fault)))
    return tuple(flights), caveats


def read_flight(path: Place) -> Flight:
    """Return the collectives of a dump, by (group, sequence). Raises UnreadableInput."""
    dump, is_window = _read(path), bool(_WINDOW.match(path.name))
    members = {name: str(group.ranks) for name, group in dump.pg_config.items()}
    has_one_group = len(members) == 1 and len({entry.group for entry in dump.entries}) == 1
    default_members = next(iter(members.values())) if has_one_group else ""
    entries = [entry for entry in dump.entries if not entry.is_p2p and 0 <= entry.sequence < 2**62]
    entries.sort(key=lambda entry: (entry.group, entry.sequence))
    return Flight(
        path=str(path),
        rank=flight_rank(path),
        group=tuple(capped(entry.group) for entry in entries),
        members=tuple(members.get(entry.group, default_members) for entry in entries),
        name=tuple(capped(entry.profiling_name) for entry in entries),
        dtype=tuple(capped(dtype_name(entry.input_dtypes[0])) if entry.input_dtypes else "" for entry in entries),
        sequence=_column(entry.sequence for entry in entries),
        elements=_column(_elements(entry) for entry in entries),
        created_ns=_column(entry.time_created_ns for entry in entries),
        state=tuple(capped(_state(entry)) for entry in entries),
        line=tuple(user_line([capped(f"{f.filename}({f.line}): {f.name}") for f in entry.frames]) for entry in entries),
        is_window=is_window,
        waits_at=capped(dump.waits_at),
    )


def _read(path: Place) -> _Dump:
    try:
        content = read_whole(path, Most.FLIGHT_DUMP)
        if content[:1] == _MAGIC:
            return msgspec.convert(load_plain(content), _Dump, strict=False)
        return _decode(content)
    except OSError as fault:
        raise UnreadableInput(str(path), fault.strerror or str(fault), _EXPECTED) from fault
    except (msgspec.MsgspecError, RecursionError, PickleRefused) as fault:
        raise UnreadableInput(str(path), str(fault), _EXPECTED) from fault


def _column(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([value if abs(value) < 2**62 else -1 for value in values], np.int64)


def _state(entry: _Entry) -> str:
    """Return scheduled, started or completed; gloo's recorder only records that an operation is over."""
    return "completed" if entry.retired and entry.profiling_name.startswith("gloo:") else entry.state


def _elements(entry: _Entry) -> int:
    """Return the number of elements of the larger side, -1 if no sizes were recorded."""
    sides = [sum(map(prod, sizes)) for sizes in (entry.input_sizes, entry.output_sizes) if sizes]
    return max(sides, default=-1)
