"""Sentences on where a traced difference shows: in which phase or Python, and in whose time that is not the cause."""

from __future__ import annotations

from collections.abc import Sequence

from traceq.compare.cause_names import cause_name
from traceq.compare.result import Cause, CellDelta, Traced
from traceq.facts.ranks.exposed_waits import EXPOSED_TRANSFER, EXPOSED_WAIT
from traceq.facts.stalls.called_time import allocations_ns, host_ops_ns
from traceq.facts.timeline.phases import BEFORE_WINDOW
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.model import Trace
from traceq.stats import Comparison
from traceq.units import Unit, format_value

__all__ = ["elsewhere_words", "exposed_delta_ns", "lateness_words", "phase_words", "python_words", "waiting_words"]

_MOST_PCT, _ALL_PCT = 50.0, 100.5
"""Percent of a difference from which a phase is named; beyond the second, others have the opposite sign."""
_LITTLE = 0.05
"""Part of a step, or of a difference, that is next to nothing."""
_RUN_TO_RUN = ("pace", "jitter", "minor")
"""Kinds of causes that hold the durations of host ops, too, which then do not take as long as before."""
_HOST_BOUND, _ALLOC_WAIT, _EXPOSED_COMM, _COMPUTE = (
    each.name.lower()
    for each in (TimeCategory.HOST_BOUND, TimeCategory.ALLOC_WAIT, TimeCategory.EXPOSED_COMM, TimeCategory.COMPUTE)
)
_OF_HOST = {
    _HOST_BOUND: ("host-bound time", "host ops", host_ops_ns),
    _ALLOC_WAIT: ("alloc wait", "allocations", allocations_ns),
}
"""Categories in which the host's work shows once the device has caught up: their words, whose time it is, how long."""
_LARGE_CELL, _SMALL_PART, _MOST_OF_CELL = 0.3, 0.1, 0.5
"""The part of a delta from which it is named; parts of it that its own ops may have become longer, and that kernels
which change the other way explain."""


def phase_words(traced: Traced, cells: Sequence[CellDelta]) -> tuple[str, ...]:
    """Return `88 % of the difference is in backward.`, where one phase has most of it.

    Nothing where that is no news: of a single phase, beside which others take next to nothing of the step.
    """
    by_phase: dict[str, int] = {}
    for cell in cells:
        by_phase[cell.phase] = by_phase.get(cell.phase, 0) + cell.delta_ns
    if not by_phase or not traced.delta_ns:
        return ()
    phase = max(by_phase, key=lambda name: by_phase[name] / traced.delta_ns)
    percent = 100 * by_phase[phase] / traced.delta_ns
    if not _MOST_PCT <= percent <= _ALL_PCT or _has_most_of_step(phase, cells):
        return ()
    where = "work launched before the trace began" if phase == BEFORE_WINDOW else phase
    return (f"{percent:.0f} % of the difference is in {where}.",)


def _has_most_of_step(phase: str, cells: Sequence[CellDelta]) -> bool:
    """Return whether nearly all time of both sides is in one phase."""
    whole, in_phase = (
        [sum(getattr(cell, side) for cell in chosen) for side in ("a_ns", "b_ns")]
        for chosen in (cells, [cell for cell in cells if cell.phase == phase])
    )
    return all(part > (1 - _LITTLE) * of for part, of in zip(in_phase, whole, strict=True) if of)


def waiting_words(
    traced: Traced, cells: Sequence[CellDelta], causes: Sequence[Cause], *, num_ranks: int = 1
) -> tuple[str, ...]:
    """Return what of exposed communication is waiting and what is transfer, where collectives are causes.

    Of one rank of several, which is named: others may wait more where it waits less.
    """
    least_ns = _LITTLE * abs(traced.delta_ns)
    if not any(cause.kind == "collective" and abs(cause.delta_ns) > least_ns for cause in causes):
        return ()
    waits, transfers = (
        [cell.delta_ns for cell in cells if cell.category == category] for category in (EXPOSED_WAIT, EXPOSED_TRANSFER)
    )
    if not waits and not transfers:
        return ()
    wait, transfer = (format_value(sum(each), Unit.DELTA_NS) for each in (waits, transfers))
    what = f"exposed communication of rank {traced.rank}" if num_ranks > 1 else "exposed communication"
    return (f"Of {what}, waiting for other ranks differs by {wait} and transfer by {transfer}.",)


def elsewhere_words(
    a: Trace, b: Trace, traced: Traced, cells: Sequence[CellDelta], causes: Sequence[Cause]
) -> tuple[str, ...]:
    """Return that host-bound time of a phase is no work of its ops, where these take as long as before.

    Where the host runs ahead, a change acts at one place and shows at another: a sync drains the queue of launches, and
    ops or allocations that took exactly as long become what the device waits for. Or kernels take the time in which it
    waited. `a`, `b`: traces of the rank that is
    explained.
    """
    if not traced.is_matched or not traced.delta_ns:
        return ()
    sign, whole_ns = (1 if traced.delta_ns > 0 else -1), abs(traced.delta_ns)
    of_host = (cell for cell in cells if cell.category in _OF_HOST)
    bound = max(of_host, key=lambda cell: sign * cell.delta_ns, default=None)
    if bound is None or sign * bound.delta_ns < _LARGE_CELL * whole_ns:
        return ()
    what, calls, taken_ns = _OF_HOST[bound.category]
    shown = f"It shows as {format_value(bound.delta_ns, Unit.DELTA_NS)} of {what} in {bound.phase}"
    if filled := _filled_words(bound, cells):
        return (f"{shown}, {filled}.",)
    own_ns = sum(cause.delta_ns for cause in causes if cause.phase == bound.phase and _is_of(bound.category, cause))
    varies_ns = sum(sign * cause.delta_ns for cause in causes if cause.kind in _RUN_TO_RUN)
    named = [cause for cause in causes if cause.names_a_change and cause.kind not in _RUN_TO_RUN]
    others = [cause for cause in named if sign * cause.delta_ns > _LARGE_CELL * whole_ns]
    if max(abs(own_ns), varies_ns) > _SMALL_PART * abs(bound.delta_ns) or not others:
        return ()
    cause = max(others, key=lambda each: sign * each.delta_ns)
    if sign * (taken_ns(b, bound.phase) - taken_ns(a, bound.phase)) > _SMALL_PART * abs(bound.delta_ns):
        return ()
    reason = f"they start {'later' if sign > 0 else 'earlier'} because of {cause_name(cause)}"
    return (f"{shown}, whose {calls} take as long as before: {reason}.",)


def _filled_words(bound: CellDelta, cells: Sequence[CellDelta]) -> str:
    """Return that kernels of a phase fill time in which the device waited, or leave it; "" if they change otherwise."""
    computed_ns = sum(cell.delta_ns for cell in cells if (cell.phase, cell.category) == (bound.phase, _COMPUTE))
    if computed_ns * bound.delta_ns >= 0 or abs(computed_ns) < _MOST_OF_CELL * abs(bound.delta_ns):
        return ""
    more = "more: they fill time in which the device waited" if computed_ns > 0 else "less: the device waits instead"
    return f"where kernels take {format_value(abs(computed_ns), Unit.NS)} {more}"


def _is_of(category: str, cause: Cause) -> bool:
    """Return whether a cause is the host's own time of a category."""
    is_alloc = cause.kind == "sync" and cause.work.partition(" ")[0] == "alloc"
    return is_alloc if category == _ALLOC_WAIT else cause.kind == "host"


def exposed_delta_ns(cells: Sequence[CellDelta]) -> int:
    """Return how much longer B is in collectives while nothing computes, ns per step."""
    return sum(cell.delta_ns for cell in cells if cell.category in (_EXPOSED_COMM, EXPOSED_WAIT, EXPOSED_TRANSFER))


def lateness_words(a_name: str, b_name: str, traced: Traced, cells: Sequence[CellDelta]) -> tuple[str, ...]:
    """Return, of two ranks of a job, that the device of one waits longer for its host, and less in collectives."""
    host_ns = sum(cell.delta_ns for cell in cells if cell.category == _HOST_BOUND)
    comm_ns = exposed_delta_ns(cells)
    least_ns = max(abs(traced.delta_ns), _LITTLE * traced.a_ns)
    if min(abs(host_ns), abs(comm_ns)) < least_ns or host_ns * comm_ns > 0:
        return ()
    late, other = (b_name, a_name) if host_ns > 0 else (a_name, b_name)
    longer, shorter = (format_value(abs(ns), Unit.NS) for ns in (host_ns, comm_ns))
    than = f"than that of {other}, and {shorter} less in collectives"
    return (f"{late} is later: its device waits {longer} more for its host {than}.",)


def python_words(a_name: str, b_name: str, causes: Sequence[Cause], steps: Comparison | None) -> tuple[str, ...]:
    """Return at which line B spends more time in Python, where durations of traced steps are no evidence by themselves.

    Only of Python that is as much as most of the difference of unprofiled steps, compared in `steps`.
    """
    if steps is None or not steps.unprofiled or not steps.is_seen or not steps.delta_ns:
        return ()
    python = [cause for cause in causes if cause.is_python and cause.line]
    most = max(python, key=lambda cause: cause.delta_ns / steps.delta_ns, default=None)
    if most is None or 100 * most.delta_ns / steps.delta_ns < _MOST_PCT:
        return ()
    more = "more" if most.delta_ns > 0 else "less"
    return (f"{b_name} spends {more} time in Python at {most.line} in {most.phase} than {a_name}.",)
