"""Explain the difference between two traced windows: cells and causes that add up to the nanosecond."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from traceq.causes.common_steps import common_steps
from traceq.compare.account_causes import account_causes, means_per_step
from traceq.compare.attribution import StepTime, ledger, lone_copies, step_time, whole_mean
from traceq.compare.cause_rows import cause_rows
from traceq.compare.contributions import contributions
from traceq.compare.copied_memory import with_copied_memory
from traceq.compare.cost_centers import LAUNCHES
from traceq.compare.input_shapes import have_same_work
from traceq.compare.labels import replacement_name
from traceq.compare.loader_line import with_loader_line
from traceq.compare.result import REPLACED_BY, Cause, CellDelta, Traced
from traceq.compare.side_replay import side_replays
from traceq.facts.events.device_work import device_work
from traceq.facts.stalls.syncs import SYNC_KINDS
from traceq.facts.timeline.steps import steps
from traceq.model import Trace

__all__ = ["MAX_PEERS", "Explanation", "explain"]

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
    return with_copied_memory(with_loader_line(causes, a, b), a, b)


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
