"""What a snapshot says: who holds the peak, why memory ran out, and what the file does not hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from traceq.claims.claim import Basis, Claim, Subject, measured
from traceq.claims.limits import FEW
from traceq.claims.rules import judged
from traceq.model import Action, Caveat
from traceq.report import Cell, Column, Table
from traceq.snapshots.fragmentation import free_for
from traceq.snapshots.kinds import Kind
from traceq.snapshots.lifetimes import BEFORE
from traceq.snapshots.moments import DeviceMemory, Holding, Moment
from traceq.snapshots.sentences import MORE_ROWS, caveat
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
    for index, column in list(enumerate(columns))[1:]:
        values = [value for row in rows if isinstance(value := row[index], int | float)]
        cells.append(sum(values) if column.unit in _SUMMED and not column.key.startswith("largest") else "")
    return tuple(cells)
