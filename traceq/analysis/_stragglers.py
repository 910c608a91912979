"""Which ranks the others wait for: by the waits that they cause in traced steps, checked against unprofiled steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._wording import category_term, in_traced_steps
from traceq.facts.ranks.caused_waits import CausedWaits, stragglers
from traceq.facts.ranks.exposed_waits import EXPOSED_WAIT
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.lateness import Lateness, PhaseCategory, lateness
from traceq.facts.timeline.data_loading import LOADER
from traceq.frozen import frozen
from traceq.report import Finding
from traceq.stats.late_ranks import late_ranks, lateness_of_ranks, steps_needed
from traceq.stats.means import chance_of_mean
from traceq.units import Unit, format_ranks, format_value

__all__ = ["Straggler", "Stragglers", "find_stragglers", "late_unprofiled", "straggler_finding"]

_LEAST_SHARE = 0.05
"""Part of the step for which the others wait, from which a rank is a straggler."""
_MOST_CHANCE = 0.025
_LOADS = re.compile(f"^Python in {LOADER}")
_MOST_NAMED = 2


@frozen
class Straggler:
    """A late rank: the others wait `wait_ns` of a traced step for it, `exposed_ns` of it while nothing computes.

    `late_ns` of an unprofiled step that it works longer, None where only the trace says so.
    """

    rank: int
    wait_ns: int
    exposed_ns: int
    late_ns: int | None
    cause: Lateness | None


@frozen
class Stragglers:
    """Late ranks, the largest cause of waits first; `note` says what the traced steps show beyond them, and why not.

    `num_unprofiled` is the number of unprofiled steps that decided, 0 where the traced ones did. `unsteady` ranks cause
    most of the waits, but too irregularly to be named. `num_traced` steps, which all ranks count, have the waits.
    """

    ranks: tuple[Straggler, ...]
    note: str
    num_unprofiled: int = 0
    unsteady: frozenset[int] = frozenset()
    num_traced: int = 0


@frozen(eq=False)
class _Unprofiled:
    """S unprofiled steps: `late` float64[R, S] ns; phases in which ranks wait for each other, where lateness hides."""

    late: NDArray[np.float64]
    waiting_phases: frozenset[str]
    late_ranks: tuple[int, ...]

    @property
    def num_steps(self) -> int:
        return len(self.late[0])

    @property
    def decides(self) -> bool:
        return self.num_steps >= steps_needed(len(self.late))


def find_stragglers(
    job: Job, waits: CausedWaits, cells: Mapping[int, Mapping[PhaseCategory, float]], step_ns: float
) -> Stragglers:
    """Return the late ranks of a job whose shortest mean step is `step_ns`; `cells` of each rank's step.

    Unprofiled steps decide where there are enough of them; without, lateness has to hold in most traced steps, and
    beyond their scatter.
    """
    ranks = job.issued.ranks
    candidates = [ranks[index] for index in stragglers(waits, step_ns, _LEAST_SHARE).tolist()]
    causes = {rank: lateness(job.query, {each: cells[each] for each in ranks}, rank) for rank in candidates}
    unprofiled = _unprofiled(job)
    is_steady = _is_steady(waits, [ranks.index(rank) for rank in candidates], step_ns)
    if unprofiled is None or not unprofiled.decides:
        if not is_steady:
            return Stragglers((), _not_steady(job, candidates, waits.num_steps), unsteady=frozenset(candidates))
        return Stragglers(
            tuple(_straggler(ranks, waits, rank, causes[rank], None) for rank in candidates),
            note="",
            num_traced=waits.num_steps,
        )
    chosen = sorted(unprofiled.late_ranks, key=lambda rank: (*candidates, rank).index(rank))
    late_ns = {rank: round(float(np.median(unprofiled.late[rank]))) for rank in chosen}
    note = _not_confirmed(
        job, unprofiled, {rank: causes[rank] for rank in candidates if rank not in chosen}, waits.num_steps
    )
    named = tuple(_straggler(ranks, waits, rank, causes.get(rank), late_ns.get(rank)) for rank in chosen)
    return Stragglers(named, note, unprofiled.num_steps, num_traced=waits.num_steps)


def late_unprofiled(job: Job) -> frozenset[int] | None:
    """Return the ranks that are late throughout the unprofiled steps; None where a run has too few of them."""
    unprofiled = _unprofiled(job)
    return frozenset(unprofiled.late_ranks) if unprofiled is not None and unprofiled.decides else None


def straggler_finding(job: Job, late: Stragglers) -> tuple[Finding, ...]:
    """Return the finding that names the late ranks; none without any."""
    if not late.ranks:
        return ()
    named, several = late.ranks[:_MOST_NAMED], len(late.ranks) > 1
    basis = in_traced_steps(job, late.num_traced)
    numbers = format_ranks([each.rank for each in late.ranks])
    subject = f"ranks {numbers} are stragglers" if several else f"rank {numbers} is the straggler"
    texts = [_text(each, late.num_unprofiled, basis, named=several) for each in named]
    ns = sum(each.exposed_ns for each in late.ranks)
    text = f"{subject}: {'; '.join(texts)}"
    return (Finding("straggler", "high", text, ns, f"rank {named[0].rank}", instead_of=(EXPOSED_WAIT,)),)


def _text(late: Straggler, num_unprofiled: int, basis: str, *, named: bool) -> str:
    wait, exposed = (format_value(ns, Unit.NS) for ns in (late.wait_ns, late.exposed_ns))
    who = f"rank {late.rank}" if named else "it"
    waits = f"{basis} the others wait {wait} per step for {who}, {exposed} of it exposed"
    if not late.wait_ns:
        waits = f"{basis} the others do not wait for {who}"
    if late.late_ns is not None:
        longer = format_value(late.late_ns, Unit.NS)
        waits = (
            f"{who} works {longer} longer than the others, persistently in {num_unprofiled:,} unprofiled steps; {waits}"
        )
    return f"{waits}; {_reason(late.cause)}" if late.cause is not None else waits


def _reason(cause: Lateness) -> str:
    """Return `its host-bound time in forward is 1.00 s longer than theirs, 0.90 s of it aten::sort at train.py:4`."""
    excess = format_value(cause.excess_ns, Unit.NS)
    text = f"its {category_term(cause.category)} time in {cause.phase} is {excess} longer than theirs"
    if cause.what and cause.what_excess_ns > 0:
        part = format_value(cause.what_excess_ns, Unit.NS)
        place = f" at {cause.line}" if cause.line else f", before {cause.before}" if cause.before else ""
        text += f", {part} of it {'the data loader' if _LOADS.match(cause.what) else cause.what}{place}"
    return text


def _straggler(
    ranks: Sequence[int], waits: CausedWaits, rank: int, cause: Lateness | None, late_ns: int | None
) -> Straggler:
    index = ranks.index(rank)
    wait_ns, exposed_ns = (
        round(float(waits.caused(values)[index]) / waits.num_steps) for values in (waits.ns, waits.exposed_ns)
    )
    return Straggler(rank, wait_ns, exposed_ns, late_ns, cause)


def _is_steady(waits: CausedWaits, candidates: Sequence[int], step_ns: float) -> bool:
    """Return whether these ranks together are late in most steps, and beyond the scatter of the steps.

    A single step has no scatter: there, in most of its collectives, and beyond theirs.
    """
    if not candidates:
        return False
    is_one = waits.num_steps < 2
    caused = waits.per_collective(waits.ns) if is_one else waits.per_step(waits.ns)
    of_them, all_ranks = caused[:, candidates].sum(axis=1), caused.sum(axis=1)
    by_turns = all_ranks * len(candidates) / caused.shape[1]
    in_most = of_them > all_ranks / 2 if is_one else of_them >= _LEAST_SHARE * step_ns
    return 2 * int(np.count_nonzero(in_most)) > len(caused) and chance_of_mean(of_them - by_turns) <= _MOST_CHANCE


def _unprofiled(job: Job) -> _Unprofiled | None:
    """Return the lateness of all ranks in the unprofiled steps of the run's arm; None where that is not recorded."""
    timings, issued = job.timings, job.issued
    if timings is None or issued.ranks != tuple(range(len(timings.step_ns))) or len(issued.ranks) < 2:
        return None
    waiting = frozenset(issued.phases[phase] for phase in np.unique(issued.phase).tolist() if phase >= 0)
    index = [number for number, name in enumerate(timings.phases) if name in waiting]
    if not index:
        return None
    step_ns = timings.step_ns.astype(np.float64)
    wait_ns = timings.phase_ns[..., index].sum(axis=2).astype(np.float64)
    late = lateness_of_ranks(step_ns - wait_ns, wait_ns, step_ns)
    return _Unprofiled(late * float(np.median(step_ns.max(axis=0))), waiting, late_ranks(late))


def _not_confirmed(job: Job, unprofiled: _Unprofiled, causes: Mapping[int, Lateness | None], num_steps: int) -> str:
    """Return what the traced steps show and unprofiled ones do not, or cannot; "" for nothing."""
    if not causes:
        return ""
    waited = _waited_for(job, list(causes), num_steps)
    hidden = {cause.phase for cause in causes.values() if cause} & unprofiled.waiting_phases
    if hidden:
        phase = sorted(hidden)[0]
        return (
            f"{waited}, late in {phase}, where unprofiled times show no lateness: record again to tell it from chance."
        )
    many = f"{unprofiled.num_steps:,} unprofiled steps"
    return f"{waited}; {'they are' if len(causes) > 1 else 'it is'} not late throughout {many}."


def _not_steady(job: Job, candidates: Sequence[int], num_steps: int) -> str:
    return f"{_waited_for(job, candidates, num_steps)}, too irregularly to name a straggler." if candidates else ""


def _waited_for(job: Job, ranks: Sequence[int], num_steps: int) -> str:
    noun = "ranks" if len(ranks) > 1 else "rank"
    return f"{in_traced_steps(job, num_steps).capitalize()} the others wait for {noun} {format_ranks(ranks)}"
