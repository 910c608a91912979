"""Which rank the difference comes from, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from traceq.compare.ranks import alone
from traceq.compare.result import CellDelta, RankDelta, Traced
from traceq.units import Unit, format_value

__all__ = ["rank_words"]

_AHEAD = 1.02


def rank_words(
    traced: Traced, deltas: Sequence[RankDelta], cells: Sequence[CellDelta], waited_in: str
) -> tuple[str, ...]:
    """One line or none: the rank that changed alone, with the largest of its `cells` and the collective in which the
    others wait for it; else the rank that the others wait for on both sides.
    """
    found, rank = alone(deltas), traced.rank
    if found is not None:
        return (_alone(found, cells, waited_in, traced.per),)
    mine = next((one for one in deltas if one.rank == rank), None)
    others = [one for one in deltas if one.rank != rank]
    if mine is None or not others or mine.delta_ns == 0:
        return ()
    of_a, of_b = median(one.own_a_ns for one in others), median(one.own_b_ns for one in others)
    if mine.own_a_ns < _AHEAD * of_a or mine.own_b_ns < _AHEAD * of_b:
        return ()
    own, theirs = (" and ".join(_time(ns) for ns in pair) for pair in ((mine.own_a_ns, mine.own_b_ns), (of_a, of_b)))
    part = "a step" if traced.marked else "the trace"
    return (f"The others wait for rank {rank}, whose own part of {part} is {own} against their {theirs}: its causes.",)


def _alone(found: RankDelta, cells: Sequence[CellDelta], waited_in: str, per: str) -> str:
    slower = found.own_delta_ns > 0
    sign = 1 if slower else -1
    own = [cell for cell in cells if cell.category != "exposed_comm"]
    most = max(own, key=lambda cell: sign * cell.delta_ns)
    part = f"{format_value(most.delta_ns, Unit.DELTA_NS)} {most.category} in {most.phase}"
    text = (
        f"Rank {found.rank} alone is {_time(abs(found.own_delta_ns))} {per} {'slower' if slower else 'faster'}: {part}"
    )
    wait = "wait for it" if slower else "wait that much less for it"
    return f"{text}; the others {wait} in {waited_in}." if waited_in else f"{text}."


def _time(ns: float) -> str:
    return format_value(ns, Unit.NS)
