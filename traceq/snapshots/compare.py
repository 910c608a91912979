"""Two snapshots: what came and went at the peak, by kind and line, to the byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from traceq.claims.claim import Basis, Claim, measured
from traceq.claims.rules import judged
from traceq.facts.timeline.call_sites import line_function
from traceq.frozen import frozen
from traceq.locations import Place as Location
from traceq.locations import place
from traceq.model import Caveat
from traceq.report import Report, Sheet, Source, Table, column
from traceq.runs.memory_snapshot import read_memory_snapshots
from traceq.snapshots.moments import DeviceMemory, Holding, Kind, Moment, device_memory, places_of
from traceq.snapshots.sentences import BY_LINE, caveat
from traceq.snapshots.show import caveats_of, closed, reserved_rows, with_total
from traceq.units import Unit, format_value

SNAPSHOT_DIFF_SCHEMA = "traceq.snapshot_diff/2"

_MOST_LINES, _MOST_WORDS = 20, 3


@frozen
class _MomentRow:
    """Allocated and reserved on both sides at a moment."""

    moment: str = column("moment")
    a_bytes: int | None = column("A", Unit.BYTES)
    b_bytes: int | None = column("B", Unit.BYTES)
    delta_bytes: int | None = column("delta", Unit.DELTA_BYTES)
    a_reserved_bytes: int | None = column("A reserved", Unit.BYTES)
    b_reserved_bytes: int | None = column("B reserved", Unit.BYTES)


@frozen
class _KindRow:
    """What is alive on both sides, by kind; the rows add up to the delta."""

    kind: str = column("kind")
    a_bytes: int = column("A", Unit.BYTES)
    b_bytes: int = column("B", Unit.BYTES)
    delta_bytes: int = column("delta", Unit.DELTA_BYTES)


@frozen
class _LineRow:
    """What is alive on both sides, by kind and line, the largest difference first."""

    kind: str = column("kind")
    line: str = column("line")
    """`file.py function` where its lines differ between the sides."""
    op: str = column("op")
    a_num: int = column("allocations of A", Unit.COUNT)
    b_num: int = column("of B", Unit.COUNT)
    a_bytes: int = column("A", Unit.BYTES)
    b_bytes: int = column("B", Unit.BYTES)
    delta_bytes: int = column("delta", Unit.DELTA_BYTES)


@frozen
class _PartRow:
    """What is reserved at the end, in parts."""

    part: str = column("part")
    a_bytes: int = column("A", Unit.BYTES)
    b_bytes: int = column("B", Unit.BYTES)
    delta_bytes: int = column("delta", Unit.DELTA_BYTES)


def snapshot_diff(a: str | Location, b: str | Location) -> Sheet:
    """Return the comparison of the peaks of two snapshots, of their ends where one has no history.

    Of several devices that with the highest peak is compared. Raises UnreadableInput.
    """
    side_a, side_b = sides = [_highest(path) for path in (a, b)]
    name = "peak" if all(side.has_history for side in sides) else "end"
    moments = [side.moment(name) for side in sides]
    before, after = (moment for moment in moments if moment is not None)
    lines, kinds = _line_rows(side_a, side_b, before, after), _kind_rows(before, after)
    rows = list(_moment_rows(side_a, side_b)), list(_part_rows(side_a, side_b))
    of_moments = Table.of("memory_moments", "Allocated and reserved", _MomentRow, rows[0])
    by_kind = Table.of("memory_kinds", f"At the {name}, by kind", _KindRow, kinds)
    by_line = Table.of("memory_lines", BY_LINE.format(moment=name), _LineRow, lines)
    reserved = Table.of("memory_reserved", "Reserved at the end", _PartRow, rows[1])
    claims = judged((_claim(name, before, after, kinds, lines),), Basis(), 0.0)
    return Sheet(
        Source(f"{a} -> {b}", sum(len(side.snapshot.history) for side in sides), (), 0, "memory snapshots", ""),
        (
            Report("memory_moments", (of_moments,), (of_moments,), claims),
            Report("memory_kinds", (by_kind,), (with_total(by_kind),)),
            Report("memory_lines", (by_line,), _lines_views(by_line.title, lines)),
            Report("memory_reserved", (reserved,), (with_total(reserved),)),
        ),
        tuple(_caveats(sides, name)),
        SNAPSHOT_DIFF_SCHEMA,
        is_selectable=False,
    )


def _highest(path: str | Location) -> DeviceMemory:
    memories = (device_memory(snapshot) for snapshot in read_memory_snapshots(place(path)))
    return max(memories, key=lambda memory: memory.largest.size_bytes)


def _caveats(sides: Sequence[DeviceMemory], name: str) -> Iterator[Caveat]:
    for side in sides:
        for each in caveats_of(side):
            path = side.snapshot.path
            text = each.text if each.text.startswith(path) else f"{path}: {each.text}"
            yield Caveat(each.code, text)
    devices = {side.device for side in sides}
    if len(devices) > 1:
        yield caveat("other_device", moment=name, a=sides[0].device, b=sides[1].device)


def _moment_rows(a: DeviceMemory, b: DeviceMemory) -> Iterator[_MomentRow]:
    for name in ("peak", "oom", "end"):
        before, after = a.moment(name), b.moment(name)
        if before is None and after is None:
            continue
        a_bytes, b_bytes = (moment.size_bytes if moment else None for moment in (before, after))
        delta = None if a_bytes is None or b_bytes is None else b_bytes - a_bytes
        reserved = (moment.reserved_bytes if moment else None for moment in (before, after))
        yield _MomentRow(name, a_bytes, b_bytes, delta, *reserved)


def _kind_rows(before: Moment, after: Moment) -> list[_KindRow]:
    a, b = ({kind: size for kind, (_, size) in moment.by_kind().items()} for moment in (before, after))
    sizes = ((kind, a.get(kind, 0), b.get(kind, 0)) for kind in Kind if kind in a or kind in b)
    return [_KindRow(str(kind), size_a, size_b, size_b - size_a) for kind, size_a, size_b in sizes]


def _part_rows(a: DeviceMemory, b: DeviceMemory) -> Iterator[_PartRow]:
    for before, after in zip(reserved_rows(a.snapshot), reserved_rows(b.snapshot), strict=True):
        yield _PartRow(before.part, before.size_bytes, after.size_bytes, after.size_bytes - before.size_bytes)


def _line_rows(a: DeviceMemory, b: DeviceMemory, before: Moment, after: Moment) -> list[_LineRow]:
    """Return what each line holds on both sides, the largest differences first; deltas add up to that of the moment."""
    moved = _moved_lines(_lines_of(a), _lines_of(b))
    held_a, held_b = (_by_line(moment.holdings, moved) for moment in (before, after))
    rows = []
    for key in held_a.keys() | held_b.keys():
        (a_num, a_bytes), (b_num, b_bytes) = held_a.get(key, (0, 0)), held_b.get(key, (0, 0))
        rows.append(_LineRow(*key, a_num, b_num, a_bytes, b_bytes, b_bytes - a_bytes))
    return sorted(rows, key=lambda row: (-abs(row.delta_bytes), -row.b_bytes, row.kind, row.line, row.op))


def _lines_of(memory: DeviceMemory) -> set[str]:
    return {allocating.line for allocating in places_of(memory.snapshot.stacks)}


def _moved_lines(a: set[str], b: set[str]) -> set[str]:
    """Return lines of one side only, of functions that have such lines on both, as where code above was edited."""
    moved_functions = {line_function(line) for line in a - b} & {line_function(line) for line in b - a}
    return {line for line in a ^ b if line_function(line) in moved_functions}


def _by_line(holdings: Iterable[Holding], moved: set[str]) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Return (allocations, bytes) by kind, line, or function of a `moved` one, and op."""
    result: dict[tuple[str, str, str], tuple[int, int]] = {}
    for held in holdings:
        line = line_function(held.place.line) if held.place.line in moved else held.place.line
        num, size = result.get((key := (str(held.kind), line, held.place.op)), (0, 0))
        result[key] = num + held.num, size + held.size_bytes
    return result


def _lines_views(title: str, lines: Sequence[_LineRow]) -> tuple[Table, ...]:
    """Return the lines that differ, one row for all others, and the total; nothing if none differs."""
    differing = [row for row in lines if row.delta_bytes]
    if not differing:
        return ()
    table = Table.of("memory_lines", title, _LineRow, [replace(r, line=f"{r.line} {r.op}".strip()) for r in lines])
    return (closed(table.without("op", "a_num", "b_num"), min(len(differing), _MOST_LINES), "delta_bytes"),)


def _claim(name: str, before: Moment, after: Moment, kinds: Sequence[_KindRow], lines: Sequence[_LineRow]) -> Claim:
    """Return by how much a moment differs, and which kinds of allocations do most."""
    delta, is_same = after.size_bytes - before.size_bytes, not any(row.delta_bytes for row in lines)
    changed = sorted((row for row in kinds if row.delta_bytes), key=lambda row: -abs(row.delta_bytes))
    measures = measured(
        moment=name,
        before_bytes=before.size_bytes,
        after_bytes=after.size_bytes,
        delta_bytes=None if is_same else delta,
        delta_pct=100 * delta / before.size_bytes if before.size_bytes else None,
        holders=", ".join(f"{row.kind} {_delta(row.delta_bytes)}{_most(row, lines)}" for row in changed[:_MOST_WORDS]),
    )
    return Claim("memory_delta", measures=measures)


def _most(kind: _KindRow, lines: Sequence[_LineRow]) -> str:
    """Return the line of a kind with the largest difference in the direction of its delta."""
    rows = (row for row in lines if row.kind == kind.kind and row.delta_bytes * kind.delta_bytes > 0)
    first = next(rows, None)
    return f" (most at {first.line})" if first is not None and first.line[:1] != "(" else ""


def _delta(size_bytes: int) -> str:
    return format_value(size_bytes, Unit.DELTA_BYTES)
