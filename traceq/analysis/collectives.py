"""What do the ranks say to each other, how much, and how much of it does no compute hide?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._bandwidth import algbw_gbps, busbw_gbps
from traceq.analysis._parts import Part, each_of, of_all
from traceq.analysis._wording import over_ranks
from traceq.facts.comm.collective_roles import ROLES, Role, collective_roles
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, Calls, Kernels, collective_calls, collective_kernels
from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.grouping import group
from traceq.model import Trace
from traceq.report import Cell, Column, Report, Table
from traceq.units import Unit

POSITION = 50

_COLUMNS = (
    Column("key", "key"),
    Column("rank", "rank", Unit.COUNT),
    Column("name", "collective"),
    Column("group", "group"),
    Column("group_size", "ranks", Unit.COUNT),
    Column("dtype", "dtype"),
    Column("num", "calls", Unit.COUNT),
    Column("num_kernels", "kernels", Unit.COUNT),
    Column("bytes", "bytes", Unit.BYTES),
    Column("gpu_ns", "GPU time", Unit.NS),
    Column("exposed_ns", "exposed", Unit.NS),
    Column("algbw_gbps", "algbw", Unit.GBPS),
    Column("busbw_gbps", "busbw", Unit.GBPS),
    Column("phase", "phase"),
    Column("role", "for"),
    Column("num_copies", "copies", Unit.COUNT),
)
_VIEW = ("name", "role", "phase", "dtype", "group_size", "num", "num_kernels", "bytes", "gpu_ns", "exposed_ns")


@dataclass(frozen=True, slots=True)
class _Row:
    """Collectives of one name, group, dtype, phase and role on one rank; `size_bytes` None where sizes are not told."""

    rank: int
    name: str
    group: str
    group_size: int | None
    dtype: str
    phase: str
    role: str
    num: int
    num_kernels: int
    num_copies: int
    size_bytes: int | None
    gpu_ns: int
    exposed_ns: int
    host_ns: int

    @property
    def key(self) -> str:
        called = "" if self.num else "no call"
        return "|".join((self.name, self.group, self.dtype, self.phase, self.role, called)).rstrip("|")

    @property
    def algbw_gbps(self) -> float | None:
        """Of the time of the kernels, what they wait for other ranks included."""
        return algbw_gbps(self.size_bytes, self.gpu_ns)

    @property
    def busbw_gbps(self) -> float | None:
        return busbw_gbps(self.algbw_gbps, self.name, self.group_size)

    @property
    def cells(self) -> tuple[Cell, ...]:
        values = {
            column.key: getattr(self, "size_bytes" if column.key == "bytes" else column.key) for column in _COLUMNS
        }
        return tuple(values.values())


def summarize(trace: Trace) -> Part[_Row]:
    """Calls and kernels of collectives over the whole trace; kernels without a call are rows with 0 calls."""
    return Part(tuple(_rows(trace)))


def merge(job: Job, parts: Sequence[Part[_Row]]) -> Report:
    """The rows of all ranks; people see sums over them."""
    rows = of_all(parts)
    cells = each_of(parts, lambda part: [row.cells for row in part.rows])
    table = Table("collectives", "Collectives", _COLUMNS, cells)
    return Report("collectives", (table,), (_view(job, rows),) if rows else ())


def _rows(trace: Trace) -> list[_Row]:
    calls, kernels, work = collective_calls(trace), collective_kernels(trace), device_work(trace)
    identity = _identities(trace, calls, kernels)
    num_calls = len(calls)
    groups = group(list(identity))
    is_call = np.arange(len(groups.of_row)) < num_calls
    is_copy = np.r_[np.zeros(num_calls, np.bool_), kernels.is_copy]
    duration = (work.end - work.start)[kernels.work]
    exposed = _exposed(trace, len(work))[kernels.work]
    size = np.r_[np.maximum(calls.size, 0), np.zeros(len(kernels.work), np.int64)]
    unknown = groups.sum(np.r_[calls.size < 0, np.zeros(len(kernels.work), np.bool_)])
    sums = zip(
        groups.keys.tolist(),
        groups.sum(is_call),
        groups.sum(~is_call & ~is_copy),
        groups.sum(is_copy),
        groups.sum(size),
        unknown,
        groups.sum(np.r_[np.zeros(num_calls, np.int64), duration]),
        groups.sum(np.r_[np.zeros(num_calls, np.int64), exposed]),
        groups.sum(np.r_[trace.events.dur[calls.rows], np.zeros(len(kernels.work), np.int64)]),
        strict=True,
    )
    rows = []
    for (name, text, ranks, dtype, phase, role, _), num, num_kernels, num_copies, size_bytes, unsized, *times in sums:
        words = (_text(trace, text), _size(trace, ranks), _text(trace, dtype), phases(trace).names[phase], ROLES[role])
        sized = None if unsized or not num else size_bytes
        rows.append(_Row(trace.rank, COLLECTIVE_NAMES[name], *words, num, num_kernels, num_copies, sized, *times))
    return rows


def _identities(trace: Trace, calls: Calls, kernels: Kernels) -> NDArray[np.int64]:
    """int64[7, calls + kernels]: name, group, group size, dtype, phase, role, 1 for a kernel without a call.

    A kernel has those of its call; without one its own phase, and no known role.
    """
    messages = trace.events.messages
    of_work = phases(trace).of_work[kernels.work]
    linked = kernels.call >= 0

    def both(of_call: NDArray[np.int64], otherwise: NDArray[np.int64]) -> NDArray[np.int64]:
        of_kernel = np.where(linked, of_call[kernels.call], otherwise) if len(of_call) else otherwise
        return np.concatenate([of_call, of_kernel])

    def told(column: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.int64]:
        if len(column) == 0:
            return np.full(len(calls), -1)
        return np.where(calls.message >= 0, column[calls.message].astype(np.int64), -1)

    absent = np.full(len(kernels.work), -1)
    columns: NDArray[np.int64] = np.stack(
        [
            both(calls.name, kernels.name),
            both(told(messages.group), absent),
            both(told(messages.group_size), absent),
            both(told(messages.dtype), absent),
            both(calls.phase, of_work),
            both(collective_roles(trace), np.full(len(kernels.work), Role.UNKNOWN)),
            np.r_[np.zeros(len(calls), np.int64), (~linked).astype(np.int64)],
        ]
    )
    return columns


def _exposed(trace: Trace, num_work: int) -> NDArray[np.int64]:
    """int64[D] ns: time that each piece of device work runs while nothing computes, as a collective or a copy."""
    done = activity(trace)
    total = np.zeros(num_work, np.int64)
    mine = done.among(TimeCategory.EXPOSED_COMM, TimeCategory.EXPOSED_MEMCPY)
    if num_work:
        np.add.at(total, done.owner[mine], done.ns[mine])
    return total


def _text(trace: Trace, number: int) -> str:
    return trace.events.strings[number] if number >= 0 else ""


def _size(trace: Trace, ranks: int) -> int | None:
    """Ranks of a group; where the call does not say, those of the world."""
    return ranks if ranks > 0 else trace.world_size if trace.world_size > 1 else None


def _view(job: Job, rows: Sequence[_Row]) -> Table:
    """Sums over ranks and groups, by collective, phase and dtype; without a device the time of the calls' threads."""
    on_device = any(row.num_kernels or row.num_copies for row in rows)
    merged: dict[tuple[Cell, ...], list[int]] = {}
    unsized: set[tuple[Cell, ...]] = set()
    for row in rows:
        key = (row.name, row.role.replace("_", " "), row.phase, row.dtype, row.group_size)
        total = merged.setdefault(key, [0] * 5)
        unsized |= {key} if row.size_bytes is None else set()
        time_ns = row.gpu_ns if on_device else row.host_ns
        values = (row.num, row.num_kernels, row.size_bytes or 0, time_ns, row.exposed_ns)
        total[:] = [a + b for a, b in zip(total, values, strict=True)]
    longest = sorted(merged.items(), key=lambda item: -item[1][3])
    shown: list[tuple[Cell, ...]] = [
        (*key, num, num_kernels, None if key in unsized else size, *times)
        for key, (num, num_kernels, size, *times) in longest
    ]
    columns = {column.key: column for column in _COLUMNS}
    view = tuple(columns[key] for key in _VIEW)
    if not on_device:
        view = (*view[:6], view[7], Column("host_ns", "host time", Unit.NS))
        shown = [(*row[:6], *row[7:9]) for row in shown]
    return Table("collectives", f"Collectives ({over_ranks(job)})", view, tuple(shown))
