"""Explain the difference between two traced windows: cells and causes that add up to the nanosecond."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceq.causes.common_steps import common_steps
from traceq.causes.replay import replay_of
from traceq.compare.account_causes import account_causes, means_per_step
from traceq.compare.attribution import StepTime, ledger, lone_copies, step_time, whole_mean
from traceq.compare.cause_rows import cause_rows
from traceq.compare.contributions import contributions
from traceq.compare.cost_centers import LAUNCHES
from traceq.compare.input_shapes import have_same_work
from traceq.compare.labels import replacement_name
from traceq.compare.loader import with_loader_line
from traceq.compare.result import AND, REPLACED_BY, Cause, CellDelta, SideReplay, Traced
from traceq.facts.events.copies import CopyKind, copy_kind
from traceq.facts.events.device_work import device_work, lacks_host_ops
from traceq.facts.events.name_patterns import unique_names
from traceq.facts.memo import once_per_trace
from traceq.facts.ranks.exposed_waits import EXPOSED_TRANSFER, EXPOSED_WAIT, exposed_pieces, exposed_waiting_times
from traceq.facts.ranks.job import RunRanks
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.grouping import group
from traceq.intervals import span_index
from traceq.model import Category, Trace
from traceq.units import Unit, format_value

MAX_PEERS = 31
"""Other ranks whose changes are looked at: the events of each are in memory, and on one graph."""

_BETWEEN_NAMES = re.compile(rf"( > | in |^(?:{'|'.join(SYNC_KINDS)}) | \(and \d+ more\))")
_FOLLOW_UNLIKE = "the compared steps follow other work"

Explanation = tuple[Traced, tuple[CellDelta, ...], tuple[Cause, ...]]


def explain(a: Trace, b: Trace, peers: Sequence[tuple[Trace, Trace]] = ()) -> Explanation:
    """Return (the traced step of both sides, its cells, its causes by size of their delta).

    Both cells and causes add up to the traced delta exactly; swapping A and B changes every sign and nothing else.
    Causes come from the common graph of both sides; without a device, or where the sides have too little in common for
    that, they are the differences of the accounts to which each side's time is charged. `peers` are at most MAX_PEERS
    other ranks: a cause may be on one of them.
    """
    of_a, of_b = step_time(a), step_time(b)
    a_ns, b_ns = (whole_mean(side.total_ns, side.num_steps) for side in (of_a, of_b))
    marked = [steps(trace).marked for trace in (a, b)]
    whole = None if marked[0] == marked[1] else marked.index(False)
    traced = Traced(of_a.rank, a_ns, b_ns, of_a.num_steps, of_b.num_steps, any(marked), b_rank=of_b.rank, whole=whole)
    cells = _cells(of_a, of_b)
    if len(device_work(a)) and len(device_work(b)):
        ranks = sorted([(a, b), *peers], key=lambda sides: sides[0].rank)
        explained = next(index for index, sides in enumerate(ranks) if sides[0] is a)
        common = common_steps([ours for ours, _ in ranks], [theirs for _, theirs in ranks], explained)
        unclear = "" if common.opens_alike else _FOLLOW_UNLIKE
        traced = replace(traced, matched_pct=common.matched_pct, unclear=unclear)
        parts = contributions(common) if traced.is_matched else None
        if parts and parts.is_mostly_before and _num_before(a) != _num_before(b):
            traced = replace(traced, unclear=_FOLLOW_UNLIKE)
        elif parts:
            causes: Sequence[Cause] = cause_rows(common, parts, traced.delta_ns)
            causes = _with_both_names(causes, common.others, is_swapped=common.is_swapped)
            return traced, cells, _placed(tuple(causes), a, b)
        traced = replace(traced, replays=side_replays(a, b))
    is_host_only = not len(device_work(a)) and not len(device_work(b))
    is_alike = have_same_work(a, b)
    apart = lone_copies(a) | lone_copies(b)
    sides = ledger(a, apart), ledger(b, apart)
    causes = account_causes(*sides, traced.delta_ns, is_host_only=is_host_only, has_same_work=is_alike)
    return traced, cells, _placed(causes, a, b)


def _num_before(trace: Trace) -> int:
    """Return how much work of the device was launched before the trace."""
    return int(device_work(trace).before_window.sum())


def _placed(causes: tuple[Cause, ...], a: Trace, b: Trace) -> tuple[Cause, ...]:
    return _with_copied_memory(with_loader_line(causes, a, b), a, b)


def _cells(a: StepTime, b: StepTime) -> tuple[CellDelta, ...]:
    """Return every phase and category of either side, by name."""
    of_a, of_b = ({(cell.phase, cell.category): cell.ns for cell in side.cells} for side in (a, b))
    means = means_per_step(of_a, of_b, a.num_steps, b.num_steps)
    return tuple(CellDelta(*key, a_ns, b_ns) for key, (a_ns, b_ns) in means.items())


def _with_both_names(causes: Sequence[Cause], others: Mapping[str, str], *, is_swapped: bool) -> Sequence[Cause]:
    """Return causes whose ops have A's names, and behind these B's where they have `others` there.

    `is_swapped`: the other names are A's.
    """
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


def side_replays(a: Trace, b: Trace) -> tuple[SideReplay, SideReplay]:
    """Return the replay of either side without its one-sided syncs, and with a host that takes no time."""
    kinds_a, of_a = _kinds(a)
    kinds_b, of_b = _kinds(b)
    one_sided = (a, _is_missing(kinds_a, kinds_b)[of_a]), (b, _is_missing(kinds_b, kinds_a)[of_b])
    replay_a, replay_b = (_replayed(trace, is_missing) for trace, is_missing in one_sided)
    if not (lacks_host_ops(a) or lacks_host_ops(b)):
        return replay_a, replay_b
    return replace(replay_a, host_ns=None, host_most_ns=None), replace(replay_b, host_ns=None, host_most_ns=None)


def _kinds(trace: Trace) -> tuple[list[tuple[str, str, str]], NDArray[np.int64]]:
    """Return (kind, op or call, and phase of the syncs of a trace, int64[S] which of them each is)."""
    waits, names, events = syncs(trace), phases(trace).names, trace.events
    texts = waits.origin.texts
    groups = group(
        [waits.kind, waits.origin.op, np.where(waits.origin.op > 0, -1, events.name[waits.rows]), waits.phase]
    )
    kinds = [
        (SYNC_KINDS[kind], texts[op] or events.strings[name], names[phase])
        for kind, op, name, phase in groups.keys.tolist()
    ]
    return kinds, groups.group_ids


def _is_missing(kinds: list[tuple[str, str, str]], elsewhere: list[tuple[str, str, str]]) -> NDArray[np.bool_]:
    return np.array([kind not in elsewhere for kind in kinds], np.bool_)


def _replayed(trace: Trace, is_one_sided: NDArray[np.bool_]) -> SideReplay:
    """Return the replay of a trace without some of its syncs, bool[S]."""
    replay, waits = replay_of(trace), host_waits(trace)
    counted = steps(trace).host[steps(trace).counted]
    inside = span_index(counted, syncs(trace).start) >= 0
    removed = np.r_[is_one_sided, False][waits.call][None]
    (of_syncs,), of_host = replay.saved_per_step(removed, everywhere=True), replay.without_host_time
    return SideReplay(
        num_syncs=int((is_one_sided & inside).sum()) / len(counted),
        syncs_ns=of_syncs.least_ns,
        syncs_most_ns=of_syncs.most_ns,
        host_ns=of_host.least_ns,
        host_most_ns=of_host.most_ns,
    )


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
