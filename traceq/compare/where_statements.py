"""Where a difference shows: on which rank, in which phase or line, and in whose time that is not the cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from traceq.claims.claim import Measure
from traceq.claims.limits import MOST
from traceq.compare.cause_names import cause_name
from traceq.compare.limits import ALL, LARGE, NAMED, PHASE, REST, STRAGGLES
from traceq.compare.ranks import only_changed_rank
from traceq.compare.result import Cause, CellDelta, RankDelta, Traced
from traceq.compare.sentences import BEFORE_TRACE
from traceq.compare.side import Side
from traceq.compare.statement import Statement, state
from traceq.facts.ranks.exposed_waits import EXPOSED_TRANSFER, EXPOSED_WAIT
from traceq.facts.ranks.loading_workers import worker_line
from traceq.facts.stalls.syncs import allocations_ns, host_ops_ns
from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.facts.timeline.phases import BEFORE_WINDOW
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.facts.timeline.unprofiled_phases import unprofiled_phases
from traceq.frozen import frozen
from traceq.model import Run, Timings, Trace
from traceq.stats import Comparison
from traceq.stats.hodges_lehmann import location_of_pairs, shift_of_pairs

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


def most_in_phase(traced: Traced, cells: Sequence[CellDelta]) -> Iterator[Statement]:
    """Yield the phase that has most of the difference.

    Nothing where that is no news: of a single phase, beside which others take next to nothing of the step.
    """
    by_phase: dict[str, int] = {}
    for cell in cells:
        by_phase[cell.phase] = by_phase.get(cell.phase, 0) + cell.delta_ns
    if not by_phase or not traced.delta_ns:
        return
    phase = max(by_phase, key=lambda name: by_phase[name] / traced.delta_ns)
    part = by_phase[phase] / traced.delta_ns
    if MOST <= part <= ALL and not _has_most_of_step(phase, cells):
        where = BEFORE_TRACE if phase == BEFORE_WINDOW else phase
        yield state("most_in_phase", share_pct=100 * part, phase=where)


def _has_most_of_step(phase: str, cells: Sequence[CellDelta]) -> bool:
    """Return whether nearly all time of both sides is in one phase."""
    whole, in_phase = (
        [sum(getattr(cell, side) for cell in chosen) for side in ("a_ns", "b_ns")]
        for chosen in (cells, [cell for cell in cells if cell.phase == phase])
    )
    return all(part > (1 - NAMED) * of for part, of in zip(in_phase, whole, strict=True) if of)


def waits_and_transfers(
    traced: Traced, cells: Sequence[CellDelta], causes: Sequence[Cause], *, num_ranks: int = 1
) -> Iterator[Statement]:
    """Yield what of exposed communication is waiting and what is transfer, where collectives are causes.

    Of one rank of several, which is named: others may wait more where it waits less.
    """
    least_ns = NAMED * abs(traced.delta_ns)
    if not any(cause.kind == "collective" and abs(cause.delta_ns) > least_ns for cause in causes):
        return
    waits, transfers = (
        [cell.delta_ns for cell in cells if cell.category == category] for category in (EXPOSED_WAIT, EXPOSED_TRANSFER)
    )
    if waits or transfers:
        rank = traced.rank if num_ranks > 1 else None
        yield state("waits_and_transfers", rank=rank, wait_delta_ns=sum(waits), transfer_delta_ns=sum(transfers))


def shown_elsewhere(
    a: Trace, b: Trace, traced: Traced, cells: Sequence[CellDelta], causes: Sequence[Cause]
) -> Iterator[Statement]:
    """Yield that host-bound time of a phase is no work of its ops, where these take as long as before.

    Where the host runs ahead, a change acts at one place and shows at another: a sync drains the queue of launches, and
    ops or allocations that took exactly as long become what the device waits for. Or kernels take the time in which it
    waited. `a`, `b`: traces of the rank that is
    explained.
    """
    if not traced.delta_ns:
        return
    sign, whole_ns = (1 if traced.delta_ns > 0 else -1), abs(traced.delta_ns)
    of_host = (cell for cell in cells if cell.category in _OF_HOST)
    bound = max(of_host, key=lambda cell: sign * cell.delta_ns, default=None)
    if bound is None or sign * bound.delta_ns < LARGE * whole_ns:
        return
    category, calls, taken_ns = _OF_HOST[bound.category]
    shown: dict[str, Measure] = {"delta_ns": bound.delta_ns, "category": category, "phase": bound.phase}
    if kernels_ns := _by_kernels(bound, cells):
        yield state(
            "traded_with_kernels",
            delta_ns=bound.delta_ns,
            category=category,
            phase=bound.phase,
            kernels_delta_ns=kernels_ns,
        )
        return
    own_ns = sum(cause.delta_ns for cause in causes if cause.phase == bound.phase and _is_of(bound.category, cause))
    varies_ns = sum(sign * cause.delta_ns for cause in causes if cause.kind in _RUN_TO_RUN)
    named = [cause for cause in causes if cause.names_a_change and cause.kind not in _RUN_TO_RUN]
    least_ns = max(LARGE * whole_ns, MOST * abs(bound.delta_ns))
    others = [cause for cause in named if sign * cause.delta_ns > least_ns]
    if max(abs(own_ns), varies_ns) > REST * abs(bound.delta_ns) or not others:
        return
    cause = max(others, key=lambda each: sign * each.delta_ns)
    if sign * (taken_ns(b, bound.phase) - taken_ns(a, bound.phase)) > REST * abs(bound.delta_ns):
        return
    yield state("starts_elsewhere", calls=calls, cause=cause.key, what=cause_name(cause), **shown)


def _by_kernels(bound: CellDelta, cells: Sequence[CellDelta]) -> int:
    """Return by how much longer kernels of a phase are, which fill time in which the device waited, or leave it.

    0 if they change otherwise.
    """
    computed_ns = sum(cell.delta_ns for cell in cells if (cell.phase, cell.category) == (bound.phase, _COMPUTE))
    is_other = computed_ns * bound.delta_ns >= 0 or abs(computed_ns) < MOST * abs(bound.delta_ns)
    return 0 if is_other else computed_ns


def _is_of(category: str, cause: Cause) -> bool:
    """Return whether a cause is the host's own time of a category."""
    is_alloc = cause.kind == "sync" and cause.work.partition(" ")[0] == "alloc"
    return is_alloc if category == _ALLOC_WAIT else cause.kind == "host"


def later_host(traced: Traced, cells: Sequence[CellDelta]) -> Iterator[Statement]:
    """Yield, of two ranks of a job, that the device of one waits longer for its host, and less in collectives."""
    host_ns = sum(cell.delta_ns for cell in cells if cell.category == _HOST_BOUND)
    exposed = (_EXPOSED_COMM, EXPOSED_WAIT, EXPOSED_TRANSFER)
    comm_ns = sum(cell.delta_ns for cell in cells if cell.category in exposed)
    least_ns = max(abs(traced.delta_ns), NAMED * traced.a_ns)
    if min(abs(host_ns), abs(comm_ns)) < least_ns or host_ns * comm_ns > 0:
        return
    early, late = "ab" if host_ns > 0 else "ba"
    yield state(
        "later_host", early_side=early, late_side=late, host_bound_ns=abs(host_ns), in_collectives_ns=abs(comm_ns)
    )


def python_line(causes: Sequence[Cause], steps: Comparison | None) -> Iterator[Statement]:
    """Yield at which line B spends more time in Python, where durations of traced steps are no evidence by themselves.

    Only of Python that is as much as most of the difference of unprofiled steps.
    """
    if steps is None or not steps.unprofiled or not steps.is_seen or not steps.delta_ns:
        return
    python = [cause for cause in causes if cause.is_python and cause.line]
    most = max(python, key=lambda cause: cause.delta_ns / steps.delta_ns, default=None)
    if most is None or most.delta_ns / steps.delta_ns < MOST:
        return
    yield state("python_line", line=most.line, phase=most.phase, delta_ns=most.delta_ns)


def of_ranks(
    traced: Traced, deltas: Sequence[RankDelta], cells: Sequence[CellDelta], waited_in: str
) -> Iterator[Statement]:
    """Yield the only rank that changed, else the one with the most own time on both sides.

    With the only rank that changed the largest of its `cells` and the collective in which others wait.
    """
    if only := only_changed_rank(deltas):
        yield _only_rank(only, cells, waited_in)
        return
    explained = next((delta for delta in deltas if delta.rank == traced.rank), None)
    others = [delta for delta in deltas if delta.rank != traced.rank]
    if explained is None or not others or explained.delta_ns == 0:
        return
    others_a_ns, others_b_ns = median(rank.own_a_ns for rank in others), median(rank.own_b_ns for rank in others)
    if explained.own_a_ns < STRAGGLES * others_a_ns or explained.own_b_ns < STRAGGLES * others_b_ns:
        return
    yield state(
        "slowest_rank",
        rank=traced.rank,
        own_a_ns=explained.own_a_ns,
        own_b_ns=explained.own_b_ns,
        others_a_ns=round(others_a_ns),
        others_b_ns=round(others_b_ns),
    )


def _only_rank(delta: RankDelta, cells: Sequence[CellDelta], waited_in: str) -> Statement:
    sign = 1 if delta.own_delta_ns > 0 else -1
    own_cells = [
        cell for cell in cells if not cell.category.startswith("exposed_") or cell.category == "exposed_memcpy"
    ]
    most = max(own_cells, key=lambda cell: sign * cell.delta_ns)
    return state(
        "only_rank",
        rank=delta.rank,
        delta_ns=delta.own_delta_ns,
        cell_delta_ns=most.delta_ns,
        category=most.category.replace("_", "-"),
        phase=most.phase,
        waited_in=waited_in,
    )


_MOST_PHASES = 3


def unprofiled_phase_times(a: Side, b: Side, steps: Comparison | None) -> Iterator[Statement]:
    """Yield the phases of the unprofiled steps that differ most, the first of them with the loader's line.

    Times are means over ranks, and of the halves of the pairs that decided by their estimator; of separate recordings
    means of all steps. Nothing where no step is unprofiled, the verdict claims no difference, no phase has a notable
    part of it, or the phases differ the other way: rare long steps, which the verdict is robust to.
    """
    if steps is None or not steps.unprofiled or not steps.is_seen:
        return
    of_a, of_b = _in_pairs(a.run, b.run) or _means(a.run, b.run)
    deltas = {name: of_b[name] - of_a[name] for name in of_a if name in of_b}
    least = PHASE * abs(steps.delta_ns)
    notable = [name for name in sorted(deltas, key=lambda name: -abs(deltas[name])) if abs(deltas[name]) >= least]
    if len(deltas) < 2 or not notable or sum(deltas.values()) * steps.delta_ns <= 0:
        return
    slower, name = (b, "b") if deltas[notable[0]] > 0 else (a, "a")
    workers = worker_line(slower.ranks.job) if notable[0] == DATALOAD_WAIT else ""
    for phase in notable[:_MOST_PHASES]:
        loads = {"side": name, "workers": workers} if phase == notable[0] and workers else {}
        yield state("unprofiled_phase", phase=phase, a_ns=round(of_a[phase]), b_ns=round(of_b[phase]), **loads)


def _means(a: Run, b: Run) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean ns of each phase on either side, over ranks and steps."""
    timings = [run.timings for run in (a, b)]
    of_a, of_b = ({phase.name: phase.mean for phase in unprofiled_phases(each)} if each else {} for each in timings)
    return of_a, of_b


def _in_pairs(a: Run, b: Run) -> tuple[dict[str, float], dict[str, float]] | None:
    """Return ns of each phase of A's half of the pairs of both, and that with the shift to B; None without such pairs.

    Other steps of A were beside other arms, at other times, and the machine may have been busier then.
    """
    if a.timings is None or b.timings is None or a.manifest is None or a.manifest != b.manifest or a.arm == b.arm:
        return None
    ours, theirs = _halves(a.timings, b.arm), _halves(b.timings, a.arm)
    pairs, of_a, of_b = np.intersect1d(ours.pair, theirs.pair, assume_unique=True, return_indices=True)
    if not len(pairs):
        return None
    b_second = theirs.half[of_b] == 1
    means: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for phase in ours.ns.keys() & theirs.ns.keys():
        a_ns, b_ns = ours.ns[phase][of_a], theirs.ns[phase][of_b]
        shift = shift_of_pairs(np.where(b_second, b_ns - a_ns, a_ns - b_ns), b_second)
        means[0][phase] = location_of_pairs(a_ns, b_second)
        means[1][phase] = means[0][phase] + shift.delta
    return means


@frozen(eq=False)
class _Halves:
    """Halves of P pairs: `pair`, `half` int64[P], number and 0 or 1; `ns` int64[P] of each phase, mean of the steps."""

    pair: NDArray[np.int64]
    half: NDArray[np.int64]
    ns: dict[str, NDArray[np.int64]]


def _halves(timings: Timings, partner: str) -> _Halves:
    """Return the halves of an arm in pairs with another one, by the number of the pair."""
    steps, none = timings.of_pairs, np.empty(0, np.int64)
    if steps is None:
        return _Halves(none, none, {})
    chosen = np.flatnonzero(np.array([each == partner for each in steps.partners], np.bool_))
    pair, first, of_step = np.unique(steps.pair[chosen], return_index=True, return_inverse=True)
    num = np.bincount(of_step, minlength=len(pair))
    ns = {
        phase.name: np.rint(
            np.bincount(of_step, weights=phase.ns[:, chosen].mean(axis=0), minlength=len(pair)) / num
        ).astype(np.int64)
        for phase in unprofiled_phases(timings)
    }
    return _Halves(pair, steps.half[chosen[first]], ns)
