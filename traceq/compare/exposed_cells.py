"""Cells of exposed communication divided in waiting for other ranks and transfer, where both sides have such ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceq.compare.result import CellDelta
from traceq.facts.ranks.exposed_waits import EXPOSED_TRANSFER, EXPOSED_WAIT, exposed_pieces, exposed_waiting_times
from traceq.facts.ranks.run_ranks import RunRanks
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory

__all__ = ["waits_apart"]

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
