"""Sentence on the rank that the difference comes from."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from traceq.compare.ranks import only_changed_rank
from traceq.compare.result import CellDelta, RankDelta, Traced
from traceq.stats import Comparison
from traceq.units import Unit, format_value

__all__ = ["rank_words", "slowest_words"]

_STRAGGLES = 1.02
_SAME_DELTA = 0.05
"""Part of a delta by which that of another rank may differ: ranks that wait for each other take as long."""


def rank_words(
    traced: Traced, deltas: Sequence[RankDelta], cells: Sequence[CellDelta], waited_in: str
) -> tuple[str, ...]:
    """Return one line or none: the only rank that changed, else the one with the most own time on both sides.

    Of the only rank that changed, the line has the largest of its `cells` and the collective in which others wait.
    """
    if only := only_changed_rank(deltas):
        return (_only_rank_text(only, cells, waited_in, traced.per),)
    explained = next((delta for delta in deltas if delta.rank == traced.rank), None)
    others = [delta for delta in deltas if delta.rank != traced.rank]
    if explained is None or not others or explained.delta_ns == 0:
        return ()
    others_a, others_b = median(rank.own_a_ns for rank in others), median(rank.own_b_ns for rank in others)
    if explained.own_a_ns < _STRAGGLES * others_a or explained.own_b_ns < _STRAGGLES * others_b:
        return ()
    pairs = ((explained.own_a_ns, explained.own_b_ns), (others_a, others_b))
    times, others_times = (" and ".join(_time(ns) for ns in pair) for pair in pairs)
    is_most = explained.own_a_ns >= max(rank.own_a_ns for rank in others) and explained.own_b_ns >= max(
        rank.own_b_ns for rank in others
    )
    lead = "The same rank has the most own time on both sides" if is_most else "Most own time of both sides together"
    most = f"rank {traced.rank}, whose {traced.window} minus exposed communication is {times}"
    return (f"{lead}: {most}; the median of the others is {others_times}. The step of this rank is explained.",)


def slowest_words(
    a_name: str, b_name: str, traced: Traced, deltas: Sequence[RankDelta], comparison: Comparison | None
) -> tuple[str, ...]:
    """Return which rank is slowest on each side, as the lead has it, where another is explained by another delta."""
    if len(deltas) < 2 or comparison is None or comparison.unprofiled:
        return ()
    apart_ns, most_ns = abs(comparison.delta_ns - traced.delta_ns), max(abs(comparison.delta_ns), abs(traced.delta_ns))
    slowest = max(deltas, key=lambda rank: rank.a_ns).rank, max(deltas, key=lambda rank: rank.b_ns).rank
    if slowest == (traced.rank, traced.rank) or apart_ns <= _SAME_DELTA * most_ns:
        return ()
    of_sides = " and ".join(f"rank {rank} in {name}" for rank, name in zip(slowest, (a_name, b_name), strict=True))
    if slowest[0] == slowest[1]:
        of_sides = f"rank {slowest[0]} on both sides"
    delta = format_value(traced.delta_ns, Unit.DELTA_NS)
    return (f"The slowest is {of_sides}; rank {traced.rank}, which is explained, differs by {delta} {traced.per}.",)


def _only_rank_text(delta: RankDelta, cells: Sequence[CellDelta], waited_in: str, per: str) -> str:
    is_slower = delta.own_delta_ns > 0
    sign = 1 if is_slower else -1
    own_cells = [
        cell for cell in cells if not cell.category.startswith("exposed_") or cell.category == "exposed_memcpy"
    ]
    most = max(own_cells, key=lambda cell: sign * cell.delta_ns)
    part = f"{format_value(most.delta_ns, Unit.DELTA_NS)} of {most.category.replace('_', '-')} time in {most.phase}"
    change = f"{'slower' if is_slower else 'faster'}, by {_time(abs(delta.own_delta_ns))} {per}"
    text = f"Only rank {delta.rank} is {change} of its own time: {part}"
    wait = "wait for it" if is_slower else "wait that much less for it"
    return f"{text}; the other ranks {wait} in {waited_in}." if waited_in else f"{text}."


def _time(ns: float) -> str:
    return format_value(ns, Unit.NS)
