"""The sheet of a snapshot: who is alive at its moments, by kind and line, and what is reserved but not allocated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from traceq.errors import UsageFault
from traceq.frozen import frozen
from traceq.locations import Place as Location
from traceq.locations import place
from traceq.report import Cell, Column, Report, Sheet, Source, Table, Unknown, column
from traceq.runs.memory_snapshot import read_memory_snapshots
from traceq.snapshots.findings import caveats_of, claims_of, closed, with_total
from traceq.snapshots.fragmentation import ReservedRow, SegmentRow, reserved_rows, segment_rows
from traceq.snapshots.kinds import Kind
from traceq.snapshots.moments import DeviceMemory, Moment, device_memory, place_text
from traceq.snapshots.sentences import ALLOCATED_NOTE, KINDS_NOTE, NO_REPORT, SEGMENTS_NOTE, UNKNOWN
from traceq.units import Unit

SNAPSHOT_SCHEMA = "traceq.snapshot/2"

_MOST_LINES, _MOST_SEGMENTS = 20, 10
"""Rows that people read; JSON has all."""

_TITLES = {"peak": "at the peak", "oom": "when memory ran out", "end": "at the end"}


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
    title = f"memory snapshot of device{'s' if len(memories) > 1 else ''} {numbers}"
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
        title, held, total = _TITLES[moment.name], moment.by_kind(), moment.size_bytes or 1
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
    return closed(
        Table("memory_lines", f"Alive {_TITLES[moment.name]}{on}, by line", columns, rows), _MOST_LINES, "size_bytes"
    )


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
