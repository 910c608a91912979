"""Explain the difference between two traced windows: cells and causes that add up to the nanosecond."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from traceq.causes.common_steps import common_steps
from traceq.compare.account_contributions import account_contributions
from traceq.compare.attribution import StepTime, means_per_step, step_time, whole_mean
from traceq.compare.cause_rows import cause_rows
from traceq.compare.contributions import Contributions, contributions
from traceq.compare.cost_centers import LAUNCHES
from traceq.compare.labels import replacement_name
from traceq.compare.loader import with_loader_line
from traceq.compare.result import AND, REPLACED_BY, Cause, CellDelta, Traced
from traceq.facts.events.copies import CopyKind, copy_kind
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import unique_names
from traceq.facts.memo import once_per_trace
from traceq.facts.ranks.exposed_waits import EXPOSED_TRANSFER, EXPOSED_WAIT, exposed_pieces, exposed_waiting_times
from traceq.facts.ranks.job import RunRanks
from traceq.facts.stalls.syncs import SYNC_KINDS
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.grouping import group
from traceq.model import Category, Trace
from traceq.units import Unit, format_value

MAX_PEERS = 31
"""Other ranks whose changes are looked at: the events of each are in memory, and on one graph."""

_BETWEEN_NAMES = re.compile(rf"( > | in |^(?:{'|'.join(SYNC_KINDS)}) | \(and \d+ more\))")

Explanation = tuple[Traced, tuple[CellDelta, ...], tuple[Cause, ...]]


def explain(a: Trace, b: Trace, peers: Sequence[tuple[Trace, Trace]] = ()) -> Explanation:
    """Return (the traced step of both sides, its cells, its causes by size of their delta).

    Both cells and causes add up to the traced delta exactly; swapping A and B changes every sign and nothing else.
    Causes come from the common graph of both sides; without a device from the accounts to which each side's time is
    charged. `peers` are at most MAX_PEERS other ranks: a cause may be on one of them.
    """
    of_a, of_b = step_time(a), step_time(b)
    a_ns, b_ns = (whole_mean(side.total_ns, side.num_steps) for side in (of_a, of_b))
    marked = [steps(trace).marked for trace in (a, b)]
    whole = None if marked[0] == marked[1] else marked.index(False)
    traced = Traced(of_a.rank, a_ns, b_ns, of_a.num_steps, of_b.num_steps, any(marked), b_rank=of_b.rank, whole=whole)
    if len(device_work(a)) and len(device_work(b)):
        ranks = sorted([(a, b), *peers], key=lambda sides: sides[0].rank)
        explained = next(index for index, sides in enumerate(ranks) if sides[0] is a)
        common = common_steps([ours for ours, _ in ranks], [theirs for _, theirs in ranks], explained)
        traced, parts = replace(traced, matched_pct=common.matched_pct), contributions(common)
    else:
        parts = account_contributions(a, b)
    causes = cause_rows(parts, traced.delta_ns)
    return traced, _cells(of_a, of_b), _placed(tuple(_with_both_names(causes, parts)), a, b)


def _placed(causes: tuple[Cause, ...], a: Trace, b: Trace) -> tuple[Cause, ...]:
    return _with_copied_memory(with_loader_line(causes, a, b), a, b)


def _cells(a: StepTime, b: StepTime) -> tuple[CellDelta, ...]:
    """Return every phase and category of either side, by name."""
    of_a, of_b = ({(cell.phase, cell.category): cell.ns for cell in side.cells} for side in (a, b))
    means = means_per_step(of_a, of_b, a.num_steps, b.num_steps)
    return tuple(CellDelta(*key, a_ns, b_ns) for key, (a_ns, b_ns) in means.items())


def _with_both_names(causes: Sequence[Cause], parts: Contributions) -> Sequence[Cause]:
    """Return causes whose ops have A's names, and behind these B's where they have others there."""
    others, is_swapped = parts.others, parts.is_swapped
    return [_with_both(cause, others, is_swapped=is_swapped) for cause in causes] if others else causes


def _with_both(cause: Cause, others: Mapping[str, str], *, is_swapped: bool) -> Cause:
    old, new = _both(cause.work)
    old, new = (_other(others, old), new) if is_swapped else (old, _other(others, new))
    return replace(
        cause,
        name=cause.name.removesuffix(cause.work) + (old if old == new else replacement_name(old, new)),
        self_op=_other(others, cause.self_op) if is_swapped else cause.self_op,
        phase=_other(others, cause.phase) if is_swapped else cause.phase,
    )


def _both(work: str) -> tuple[str, str]:
    """Return the names of A and B, each with the op that launches it, of `aten::mm > old replaced by new`."""
    old, _, new = work.partition(REPLACED_BY)
    op, launches, _ = old.rpartition(LAUNCHES)
    return old, (new if LAUNCHES in new else f"{op}{launches}{new}") if new else old


def _other(others: Mapping[str, str], text: str) -> str:
    return "".join(others.get(part, part) for part in _BETWEEN_NAMES.split(text))


def _with_copied_memory(causes: tuple[Cause, ...], a: Trace, b: Trace) -> tuple[Cause, ...]:
    """Return the causes, copies with the host's memory on both sides and the bandwidth where that differs."""
    return tuple(_with_memory(cause, a, b) if cause.kind == "memcpy" else cause for cause in causes)


def _with_memory(cause: Cause, a: Trace, b: Trace) -> Cause:
    direction, of_phases = cause.work.rpartition(LAUNCHES)[2], cause.phase.split(AND)
    sides = []
    for trace in (a, b):
        sums = [each for each in _copied(trace) if each.kind.direction == direction and each.phase in of_phases]
        memory = {each.kind.memory for each in sums}
        size, ns = sum(each.size_bytes for each in sums), sum(each.ns for each in sums)
        sides.append((memory.pop() if len(memory) == 1 else "", size / ns if ns else 0.0))
    (of_a, a_gbps), (of_b, b_gbps) = sides
    if not of_a or not of_b or of_a == of_b:
        return cause
    rates = f"{a_gbps:.1f} -> {format_value(b_gbps, Unit.GBPS)}"
    return replace(cause, memory=f"{of_a} -> {of_b}, {rates}")


class _Copied(NamedTuple):
    """All copies of a kind that a phase launched."""

    kind: CopyKind
    phase: str
    size_bytes: int
    ns: int


@once_per_trace
def _copied(trace: Trace) -> tuple[_Copied, ...]:
    events, work, labels = trace.events, device_work(trace), phases(trace)
    copies = np.flatnonzero(events.category[work.rows] == Category.MEMCPY)
    names, of_name = unique_names(events, work.rows[copies])
    groups = group([of_name, labels.work_phase[copies]])
    kinds = [copy_kind(events.strings[name]) for name in names.tolist()]
    sizes = groups.sum(np.maximum(events.bytes[work.rows[copies]], 0))
    times = groups.sum(work.end[copies] - work.start[copies])
    keys = groups.keys.tolist()
    rows = zip(keys, sizes, times, strict=True)
    return tuple(_Copied(kinds[kind], labels.names[phase], size, ns) for (kind, phase), size, ns in rows)


_EXPOSED = TimeCategory.EXPOSED_COMM.name.lower()


def waits_apart(cells: Sequence[CellDelta], a: RunRanks, b: RunRanks, rank: int) -> tuple[CellDelta, ...]:
    """Return the cells of a rank, those of exposed communication as waiting and transfer; they add up as before."""
    of_a, of_b = (_waits_ns(side, rank) for side in (a, b))
    if of_a is None or of_b is None:
        return tuple(cells)
    return tuple(part for cell in cells for part in _parts(cell, of_a, of_b))


def _parts(cell: CellDelta, a: dict[str, int], b: dict[str, int]) -> Iterator[CellDelta]:
    if cell.category != _EXPOSED:
        yield cell
        return
    a_ns, b_ns = min(a.get(cell.phase, 0), cell.a_ns), min(b.get(cell.phase, 0), cell.b_ns)
    if a_ns or b_ns:
        yield CellDelta(cell.phase, EXPOSED_WAIT, a_ns, b_ns)
    if cell.a_ns - a_ns or cell.b_ns - b_ns:
        yield CellDelta(cell.phase, EXPOSED_TRANSFER, cell.a_ns - a_ns, cell.b_ns - b_ns)


def _waits_ns(side: RunRanks, rank: int) -> dict[str, int] | None:
    """Return, by phase, the exposed time of a mean counted step in which the rank waits; None where not known."""
    if len(side.job.ranks) < 2:
        return None
    waiting = exposed_waiting_times(side.job).get(rank)
    if waiting is None:
        return None
    trace = side.trace(rank)
    counted = steps(trace).counted
    sums: dict[str, int] = {}
    for (step, phase), ns in exposed_pieces(trace).waits_by_step_and_phase(waiting).items():
        if counted[step]:
            sums[phase] = sums.get(phase, 0) + ns
    return {phase: round(ns / int(counted.sum())) for phase, ns in sums.items()}
