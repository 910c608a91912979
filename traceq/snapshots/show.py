"""The sheet of a snapshot: who is alive at its moments, by kind and line, and what is reserved but not allocated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.claims.claim import Basis, Claim, Subject, measured
from traceq.claims.limits import FEW
from traceq.claims.rules import judged
from traceq.errors import UsageFault
from traceq.frozen import frozen
from traceq.locations import Place as Location
from traceq.locations import place
from traceq.model import Action, Caveat, MemorySnapshot
from traceq.report import Cell, Column, Report, Sheet, Source, Table, Unknown, column
from traceq.runs.memory_snapshot import read_memory_snapshots
from traceq.snapshots.lifetimes import BEFORE
from traceq.snapshots.moments import DeviceMemory, Holding, Kind, Moment, device_memory, place_text
from traceq.snapshots.sentences import (
    ALIVE,
    ALLOCATED_NOTE,
    DEVICES,
    KINDS_NOTE,
    MOMENTS,
    MORE_ROWS,
    NO_REPORT,
    SEGMENTS_NOTE,
    UNKNOWN,
    caveat,
)
from traceq.units import Unit, format_value

_SUMMED = (Unit.COUNT, Unit.BYTES, Unit.DELTA_BYTES, Unit.PERCENT)

_MOST_KINDS = 3
_MOVES = tuple(action for action in Action if action not in (Action.FREE_REQUESTED, Action.OOM, Action.OTHER))


def claims_of(memory: DeviceMemory, device: int | None = None) -> tuple[Claim, ...]:
    """Return who holds the peak, and why memory ran out; `device`: its number where there are several."""
    return judged(_claims(memory, device), Basis(), 0.0)


def _claims(memory: DeviceMemory, device: int | None) -> Iterator[Claim]:
    oom, peak = memory.moment("oom"), memory.moment("peak")
    if oom is not None:
        measures = measured(
            device=device,
            asked_bytes=oom.oom_bytes,
            free_bytes=oom.device_free_bytes,
            allocated_bytes=oom.size_bytes,
            holders=_holders(oom),
        )
        line = oom.place.line if oom.place is not None and oom.place.line[:1] != "(" else ""
        yield Claim("out_of_memory", subject=Subject(line=line), measures=measures)
        yield from _fragmented(memory, oom, device)
    if peak is not None:
        measures = measured(
            device=device, peak_bytes=peak.size_bytes, reserved_bytes=peak.reserved_bytes, holders=_holders(peak)
        )
        yield Claim("memory_peak", measures=measures)


def caveats_of(memory: DeviceMemory) -> Iterator[Caveat]:
    """Yield what the file does not hold, in bytes."""
    snapshot, allocations, moment = memory.snapshot, memory.allocations, memory.largest
    if not memory.has_history:
        yield caveat("no_history", path=snapshot.path)
        return
    if unrecorded := moment.by_kind().get(Kind.UNRECORDED):
        num, size = unrecorded
        sizes, num_actions = (_size(size), _size(moment.size_bytes)), allocations.num_actions
        yield caveat("unrecorded_allocations", size=sizes[0], peak=sizes[1], num=num, num_actions=num_actions)
    if _is_cut(memory):
        yield caveat("history_cut", path=snapshot.path)
    if allocations.num_contradictions:
        code = "lost_contradictions" if allocations.lost_bytes else "contradictions"
        yield caveat(code, path=snapshot.path, num=allocations.num_contradictions, lost=_size(allocations.lost_bytes))


def _is_cut(memory: DeviceMemory) -> bool:
    """Return whether blocks have a stack of an allocation that the history lacks."""
    start, stack = (
        values[memory.allocations.at_end] for values in (memory.allocations.start, memory.allocations.stack)
    )
    return bool(((start == BEFORE) & (stack > 0)).any())


def _holders(moment: Moment) -> str:
    """Return `activations 62 % (7.6 GiB, most at model.py:41 forward), ...` for the largest kinds."""
    total = moment.size_bytes or 1
    kinds = sorted(moment.by_kind().items(), key=lambda item: -item[1][1])
    words = []
    for kind, (_, size) in kinds[:_MOST_KINDS]:
        if size >= FEW * total:
            largest = next(holding for holding in moment.holdings if holding.kind is kind)
            words.append(f"{kind} {format_value(100 * size / total, Unit.PERCENT)} ({_size(size)}{_most(largest)})")
    return ", ".join(words)


def _most(largest: Holding) -> str:
    return f", most at {largest.place.line}" if largest.place.line[:1] != "(" else ""


def _fragmented(memory: DeviceMemory, oom: Moment, device: int | None) -> Iterator[Claim]:
    """Yield a claim if there was room for the request, but not in one piece, and blocks are still as they were."""
    history, request = memory.snapshot.history, oom.oom_bytes or 0
    free, largest = free_for(memory.snapshot, request)
    if np.isin(history.action[oom.action + 1 :], _MOVES).any() or not largest < request <= free:
        return
    remedy = "" if memory.snapshot.segments.is_expandable.any() else "expandable_segments"
    measures = measured(device=device, free_bytes=free, largest_bytes=largest, asked_bytes=request)
    yield Claim("fragmentation", measures=measures, remedy=remedy)


def _size(size_bytes: int) -> str:
    return format_value(size_bytes, Unit.BYTES)


def with_total(table: Table) -> Table:
    """Return a table with the total of its rows, if they are several; columns of largest parts have none."""
    return replace(table, rows=(*table.rows, _total(table.rows, table.columns))) if len(table.rows) > 1 else table


def closed(table: Table, most: int, key: str) -> Table:
    """Return the first rows of a table and the total of all, with a note on the bytes of the others in a column."""
    index = [column.key for column in table.columns].index(key)
    rest = [int(row[index] or 0) for row in table.rows[most:]]
    if not rest:
        return with_total(table)
    others = MORE_ROWS.format(num=len(rest), sum=format_value(sum(rest), table.columns[index].unit))
    rows = (*table.rows[:most], _total(table.rows, table.columns))
    return replace(table, rows=rows, note=f"{others} {table.note}".strip())


def _total(rows: Sequence[tuple[Cell, ...]], columns: Sequence[Column]) -> tuple[Cell, ...]:
    cells: list[Cell] = ["total"]
    for index, each in list(enumerate(columns))[1:]:
        values = [value for row in rows if isinstance(value := row[index], int | float)]
        cells.append(sum(values) if each.unit in _SUMMED and not each.key.startswith("largest") else "")
    return tuple(cells)


_SMALL_REQUEST = 1 << 20
"""Bytes up to which the allocator serves a request from segments that are not large."""


@frozen
class SegmentRow:
    """A segment at the end, most free memory beside blocks in use first.

    `size_bytes` is `requested_bytes` + `rounding_bytes` + `free_bytes`.
    """

    device: int = column("device", Unit.COUNT)
    address: str = column("segment")
    pool: str = column("pool")
    """`large`, or `small` for requests up to 1 MiB."""
    stream: int = column("stream", Unit.COUNT, is_hidden=True)
    is_expandable: bool = column("expandable", is_hidden=True)
    """A mapped range of an expandable segment."""
    is_used: bool = column("in use", is_hidden=True)
    size_bytes: int = column("reserved", Unit.BYTES)
    requested_bytes: int = column("allocated", Unit.BYTES)
    rounding_bytes: int = column("rounding", Unit.BYTES)
    free_bytes: int = column("free", Unit.BYTES)
    num_free_blocks: int = column("free blocks", Unit.COUNT)
    largest_free_bytes: int = column("largest free block", Unit.BYTES)

    @property
    def inactive_split_bytes(self) -> int:
        """Free bytes beside blocks in use."""
        return self.free_bytes if self.is_used else 0


@frozen
class ReservedRow:
    """A part of what is reserved at the end; the four add up to it."""

    device: int = column("device", Unit.COUNT)
    part: str = column("part")
    """`allocated`, `rounding of blocks`, `free, beside blocks in use` or `free, in segments without any`."""
    num_blocks: int = column("blocks", Unit.COUNT)
    size_bytes: int = column("reserved", Unit.BYTES)
    share_pct: float = column("share", Unit.PERCENT)
    largest_bytes: int | None = column("largest block", Unit.BYTES)


def reserved_rows(snapshot: MemorySnapshot) -> list[ReservedRow]:
    """Return the parts of what is reserved at the end, which add up to it."""
    blocks = snapshot.blocks
    is_used = np.bincount(blocks.segment[blocks.is_active], minlength=len(snapshot.segments.size)) > 0
    is_beside = ~blocks.is_active & is_used[blocks.segment]
    is_unused = ~blocks.is_active & ~is_used[blocks.segment]
    parts = (
        ("allocated", blocks.is_active, blocks.requested),
        ("rounding of blocks", blocks.is_active, blocks.size - blocks.requested),
        ("free, beside blocks in use", is_beside, blocks.size),
        ("free, in segments without any", is_unused, blocks.size),
    )
    total = int(blocks.size.sum()) or 1
    return [
        ReservedRow(
            snapshot.device,
            part,
            int(chosen.sum()),
            int(sizes[chosen].sum()),
            100 * int(sizes[chosen].sum()) / total,
            int(sizes[chosen].max(initial=0)) if part != "rounding of blocks" else None,
        )
        for part, chosen, sizes in parts
    ]


def segment_rows(snapshot: MemorySnapshot) -> list[SegmentRow]:
    """Return the segments of a device, those with most free bytes beside blocks in use first."""
    segments, blocks = snapshot.segments, snapshot.blocks
    num, free = len(segments.size), np.where(blocks.is_active, 0, blocks.size)
    rounding = np.where(blocks.is_active, blocks.size - blocks.requested, 0)
    largest, is_free = np.zeros(num, np.int64), ~blocks.is_active & (blocks.size > 0)
    np.maximum.at(largest, blocks.segment, free)
    columns = (
        segments.stream,
        segments.is_large,
        segments.is_expandable,
        np.bincount(blocks.segment[blocks.is_active], minlength=num) > 0,
        segments.size,
        _sum(blocks.segment, blocks.requested, num),
        _sum(blocks.segment, rounding, num),
        _sum(blocks.segment, free, num),
        np.bincount(blocks.segment[is_free], minlength=num),
        largest,
    )
    rows = [
        SegmentRow(snapshot.device, f"0x{address & (1 << 64) - 1:x}", "large" if is_large else "small", stream, *rest)
        for address, stream, is_large, *rest in zip(
            segments.address.tolist(), *(values.tolist() for values in columns), strict=True
        )
    ]
    return sorted(rows, key=lambda row: (-row.inactive_split_bytes, -row.free_bytes, row.address))


def free_for(snapshot: MemorySnapshot, request: int) -> tuple[int, int]:
    """Return (free bytes, largest free block) of the pool that serves a request of some bytes."""
    blocks = snapshot.blocks
    is_large = snapshot.segments.is_large[blocks.segment] == (request > _SMALL_REQUEST)
    free = blocks.size[~blocks.is_active & is_large]
    return int(free.sum()), int(free.max(initial=0))


def _sum(segment: NDArray[np.int64], values: NDArray[np.int64], num: int) -> NDArray[np.int64]:
    total = np.zeros(num, np.int64)
    np.add.at(total, segment, values)
    return total


SNAPSHOT_SCHEMA = "traceq.snapshot/2"

_MOST_LINES, _MOST_SEGMENTS = 20, 10
"""Rows that people read; JSON has all."""


@frozen
class _MomentRow:
    """The peak, the last out-of-memory error and the end of a device."""

    device: int = column("device", Unit.COUNT)
    moment: str = column("moment")
    action: int = column("action", Unit.COUNT, is_hidden=True)
    """In the history; -1: before the first."""
    time_ns: int | None = column("time", Unit.NS)
    """Since the first action; None without times."""
    allocated_bytes: int = column("allocated", Unit.BYTES)
    """Alive, as asked for."""
    reserved_bytes: int | None = column("reserved", Unit.BYTES)
    free_bytes: int | None = column("reserved, not allocated", Unit.BYTES)
    """Reserved, not allocated."""
    oom_bytes: int | None = column("asked for", Unit.BYTES)
    """Asked for in vain."""
    device_free_bytes: int | None = column("device free", Unit.BYTES)
    line: str = column("line")
    """Of the failed request, or its op."""

    @classmethod
    def of(cls, moment: Moment) -> _MomentRow:
        reserved, size = moment.reserved_bytes, moment.size_bytes
        return cls(
            moment.device,
            moment.name,
            moment.action,
            moment.time_ns,
            size,
            reserved,
            None if reserved is None else reserved - size,
            moment.oom_bytes,
            moment.device_free_bytes,
            place_text(moment.place) if moment.place else "",
        )


@frozen
class _KindRow:
    """What is alive at a moment, by kind."""

    device: int = column("device", Unit.COUNT)
    moment: str = column("moment")
    kind: str = column("kind")
    """`weights`, `gradients`, `optimizer state`, `optimizer temporaries`, `activations`, `workspace`, `other`,
    `unrecorded`.
    """
    num: int = column("allocations", Unit.COUNT)
    size_bytes: int = column("allocated", Unit.BYTES)
    share_pct: float = column("share", Unit.PERCENT)


@frozen
class _LineRow:
    """What is alive at a moment, by kind and line, the largest first."""

    device: int = column("device", Unit.COUNT)
    moment: str = column("moment")
    kind: str = column("kind")
    line: str = column("line")
    """`file.py:7 function`, `(no stack)` or `(no Python frame)`."""
    op: str = column("op")
    """Node of autograd or op of torch, where there is no line."""
    num: int = column("allocations", Unit.COUNT)
    size_bytes: int = column("allocated", Unit.BYTES)
    share_pct: float = column("share", Unit.PERCENT)


def snapshot_sheet(path: str | Location, only: Sequence[str] = ()) -> Sheet:
    """Return the reports on a snapshot, or `only` some of them. Raises UnreadableInput, UsageFault."""
    memories = [device_memory(snapshot) for snapshot in read_memory_snapshots(place(path))]
    reports = tuple(_reports(memories))
    names = [report.name for report in reports]
    if unknown_names := [name for name in only if name not in names]:
        raise UsageFault(NO_REPORT.format(name=unknown_names[0], names=", ".join(names)))
    chosen = tuple(report for report in reports if not only or report.name in only)
    caveats = tuple(caveat for memory in memories for caveat in caveats_of(memory))
    return Sheet(_source(str(path), memories), chosen, caveats, SNAPSHOT_SCHEMA)


def _source(path: str, memories: Sequence[DeviceMemory]) -> Source:
    """Return what was read, as the head of a sheet."""
    numbers = ", ".join(str(memory.device) for memory in memories)
    title = DEVICES.format(s="s" * (len(memories) > 1), numbers=numbers)
    return Source(path, sum(len(memory.snapshot.history) for memory in memories), (), 0, title, "")


def _reports(memories: Sequence[DeviceMemory]) -> Iterator[Report]:
    """Yield the reports: tables of all devices, views of the one with the highest peak."""
    shown = max(memories, key=lambda memory: memory.largest.size_bytes)
    is_one = len(memories) == 1
    on = "" if is_one else f" on device {shown.device}"
    moments = [moment for memory in memories for moment in memory.moments]

    rows = [_MomentRow.of(moment) for moment in moments]
    table = Table.of("memory_moments", "Moments", _MomentRow, rows)
    view = replace(table, title="Memory", note=ALLOCATED_NOTE).visible
    claims = tuple(each for memory in memories for each in claims_of(memory, None if is_one else memory.device))
    yield Report("memory_moments", (table,), (view.without("device") if is_one else view,), claims)

    kind_rows = [
        _KindRow(moment.device, moment.name, kind, num, size, 100 * size / (moment.size_bytes or 1))
        for moment in moments
        for kind, (num, size) in moment.by_kind().items()
    ]
    table = Table.of("memory_kinds", "Kinds", _KindRow, kind_rows)
    yield Report("memory_kinds", (table,), (_kinds_view(shown, on),), unknown=tuple(_unknown(shown)))

    line_rows = [
        _LineRow(moment.device, moment.name, held.kind, *held.place, held.num, held.size_bytes, share)
        for moment in moments
        for held in moment.holdings
        for share in [100 * held.size_bytes / (moment.size_bytes or 1)]
    ]
    first = ("oom", "peak", "end")
    views = tuple(
        _lines_view(moment, on)
        for moment in sorted(shown.moments, key=lambda m: first.index(m.name))
        if moment.holdings
    )
    yield Report("memory_lines", (Table.of("memory_lines", "Lines", _LineRow, line_rows),), views)

    parts = [row for memory in memories for row in reserved_rows(memory.snapshot)]
    segments = [row for memory in memories for row in segment_rows(memory.snapshot)]
    tables = (
        Table.of("memory_reserved", "Reserved", ReservedRow, parts),
        Table.of("memory_segments", "Segments", SegmentRow, segments),
    )
    has_segments = len(shown.snapshot.segments.size) > 0
    views = (_reserved_view(shown, on), _segments_view(shown, on)) if has_segments else ()
    yield Report("memory_reserved", tables, views)


def _kinds_view(memory: DeviceMemory, on: str) -> Table:
    """Return a row per kind, with its bytes and share at each moment."""
    kinds = [kind for kind in Kind if any(kind in moment.by_kind() for moment in memory.moments)]
    columns = [Column("kind", "kind")]
    cells: list[list[Cell]] = [[str(kind)] for kind in kinds]
    for moment in memory.moments:
        title, held, total = MOMENTS[moment.name], moment.by_kind(), moment.size_bytes or 1
        columns += [Column(f"{moment.name}_bytes", title, Unit.BYTES), Column(f"{moment.name}_pct", "", Unit.PERCENT)]
        for row, kind in zip(cells, kinds, strict=True):
            size = held.get(kind, (0, 0))[1]
            row += [size, 100 * size / total]
    return with_total(Table("memory_kinds", f"By kind{on}", tuple(columns), tuple(map(tuple, cells)), note=KINDS_NOTE))


def _lines_view(moment: Moment, on: str) -> Table:
    columns = (
        Column("kind", "kind"),
        Column("line", "line"),
        Column("num", "allocations", Unit.COUNT),
        Column("size_bytes", "allocated", Unit.BYTES),
        Column("share_pct", "share", Unit.PERCENT),
    )
    total = moment.size_bytes or 1
    rows = tuple(
        (str(held.kind), place_text(held.place), held.num, held.size_bytes, 100 * held.size_bytes / total)
        for held in moment.holdings
    )
    title = ALIVE.format(moment=MOMENTS[moment.name], on=on)
    return closed(Table("memory_lines", title, columns, rows), _MOST_LINES, "size_bytes")


def _reserved_view(memory: DeviceMemory, on: str) -> Table:
    settings = memory.snapshot.settings
    note = f"PYTORCH_CUDA_ALLOC_CONF={settings}" if settings else ""
    rows = reserved_rows(memory.snapshot)
    table = Table.of("memory_reserved", f"Reserved at the end{on}", ReservedRow, rows, note=note).without("device")
    return with_total(table.without("num_blocks"))


def _segments_view(memory: DeviceMemory, on: str) -> Table:
    """Return the segments with most free bytes beside blocks in use, and the sums of all."""
    rows = segment_rows(memory.snapshot)
    table = Table.of("memory_segments", f"Segments at the end{on}", SegmentRow, rows, note=SEGMENTS_NOTE).visible
    return closed(table.without("device"), _MOST_SEGMENTS, "free_bytes")


def _unknown(memory: DeviceMemory) -> Iterator[Unknown]:
    """Yield what the stacks do not tell, with the argument that records it."""
    history, stacks = memory.snapshot.history, memory.snapshot.stacks
    if memory.has_history and not history.stack.any():
        yield Unknown(*UNKNOWN["lines"])
    elif memory.has_history and all(frame.filename.endswith(".py") for stack in stacks for frame in stack):
        yield Unknown(*UNKNOWN["backward"])
