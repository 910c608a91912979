"""Which ranks the others wait for: by the waits that they cause in traced steps, checked against unprofiled steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from traceq.analysis._caused_waits import CausedWaitRow, most_of_waits_for
from traceq.analysis._job_gain import JobGain, job_gain
from traceq.analysis._wording import category_term, in_traced_steps, plain_phase
from traceq.causes.stragglers import StragglerRanks, UnprofiledLateness, straggler_ranks
from traceq.facts.ranks.caused_waits import CausedWaits
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.lateness import HOST, Lateness, PhaseCategory, lateness
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.frozen import frozen
from traceq.report import Finding, found
from traceq.units import Unit, format_range, format_ranks, format_value
from traceq.whatif.interventions import WithoutStraggler

__all__ = ["Straggler", "Stragglers", "find_stragglers", "late_unprofiled", "straggler_finding"]

_LOADS = re.compile(f"^Python in {LOADER}")
_UNRECORDED = TimeCategory.UNRECORDED.name.lower()
_NOT_SHOWN = "work that the trace does not show"
_MOST_NAMED = 2
_EXPLAINS = 0.25
"""Part of the waits for a rank from which its largest excess is given as their reason."""


@frozen
class Straggler:
    """A late rank: the others wait `wait_ns` of a traced step for it, `exposed_ns` of it while nothing computes.

    A rank that waits in several collectives at once waits once.

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

    `num_unprofiled` is the number of unprofiled steps that decided, 0 where the traced ones did; `saves_ns` of them
    (least, most) that the job's step of `step_ns` is shorter if all these ranks work as long as the others. `unsteady`
    ranks cause most of the waits, but too irregularly to be named, or in each of too few steps (`is_too_short`).
    `num_traced` steps, which all ranks count, have the waits.
    `undecided`: why a recording has no answer, and how to get one; "" where it has. `is_suspected`: others wait long.
    """

    ranks: tuple[Straggler, ...]
    note: str
    num_unprofiled: int = 0
    unsteady: frozenset[int] = frozenset()
    is_too_short: bool = False
    num_traced: int = 0
    undecided: str = ""
    is_suspected: bool = False
    saves_ns: tuple[float, float] | None = None
    step_ns: float = 0.0


def find_stragglers(job: Job, waits: CausedWaits, cells: Mapping[int, Mapping[PhaseCategory, float]]) -> Stragglers:
    """Return the late ranks of a job, by `straggler_ranks`, and what makes each late; `cells` of each rank's step."""
    late, ranks, num_traced = straggler_ranks(job), job.issued.ranks, waits.num_steps
    if late.undecided:
        is_suspected = bool(late.candidates)
        return Stragglers((), "", num_traced=num_traced, undecided=late.undecided, is_suspected=is_suspected)
    unprofiled = late.unprofiled
    if unprofiled is None and not late.ranks:
        note, candidates = _not_steady(job, late, num_traced), frozenset(late.candidates)
        return Stragglers((), note, unsteady=candidates, is_too_short=late.is_in_each)
    of_each = {rank: cells[rank] for rank in ranks}
    causes = {rank: lateness(job.query, of_each, rank) for rank in late.candidates}
    if unprofiled is None:
        named = tuple(_straggler(ranks, waits, rank, causes[rank], None) for rank in late.ranks)
        return Stragglers(named, note="", num_traced=num_traced)
    late_ns = {rank: round(float(np.median(unprofiled.late[rank]))) for rank in late.ranks}
    others = {rank: causes[rank] for rank in late.candidates if rank not in late.ranks}
    return Stragglers(
        tuple(_straggler(ranks, waits, rank, causes.get(rank), late_ns.get(rank)) for rank in late.ranks),
        _not_confirmed(job, unprofiled, others, num_traced),
        unprofiled.num_steps,
        num_traced=num_traced,
        saves_ns=unprofiled.saves_ns,
        step_ns=unprofiled.step_ns,
    )


def late_unprofiled(job: Job) -> frozenset[int] | None:
    """Return the ranks that are late throughout the unprofiled steps, none of too few; None where only traces exist."""
    late = straggler_ranks(job)
    return None if late.unprofiled is None and not late.undecided else frozenset(late.ranks)


def straggler_finding(job: Job, late: Stragglers, by_cause: Sequence[CausedWaitRow]) -> tuple[Finding, ...]:
    """Return the finding that names the late ranks, and where the others wait for them; none without any."""
    if not late.ranks:
        return ()
    ranks = tuple(sorted(each.rank for each in late.ranks))
    named, several = late.ranks[:_MOST_NAMED], len(late.ranks) > 1
    basis = in_traced_steps(job, late.num_traced)
    numbers = format_ranks(ranks)
    subject = f"ranks {numbers} are stragglers" if several else f"rank {numbers} is the straggler"
    gain = job_gain(job, WithoutStraggler(ranks)) if late.saves_ns is None else None
    texts = [
        _text(each, late.num_unprofiled, basis, most_of_waits_for(each.rank, by_cause), named=several) for each in named
    ]
    ns = sum(each.exposed_ns for each in late.ranks)
    is_vain = gain is not None and gain.is_nothing
    text = f"{subject}: {'; '.join([*texts, *(_saving(late) or _replayed(gain, several=several))])}"
    waited = format_value(sum(each.wait_ns for each in late.ranks), Unit.NS)
    saves_ns = (round(late.saves_ns[0]), round(late.saves_ns[1])) if late.saves_ns is not None else None
    return (
        found(
            "straggler",
            "low" if is_vain else "high",
            text,
            ns,
            f"rank {named[0].rank}",
            lead=f"{'ranks' if several else 'rank'} {numbers} late ({waited} of waits){_lead(named[0])}",
            evidence=_evidence(named[0], by_cause),
            gain=gain.saved_ns if gain is not None else saves_ns,
        ),
    )


def _lead(late: Straggler) -> str:
    """Return why a rank is late, "" where that is not known."""
    if late.cause is None or late.cause.excess_ns < _EXPLAINS * late.wait_ns:
        return ""
    return f": {_in_short(late.cause)}"


def _evidence(late: Straggler, by_cause: Sequence[CausedWaitRow]) -> str:
    wait, exposed = (format_value(ns, Unit.NS) for ns in (late.wait_ns, late.exposed_ns))
    place = most_of_waits_for(late.rank, by_cause)
    return f"the others wait {wait} for it{f', most {place}' if place else ''}; {exposed} exposed"


def _text(late: Straggler, num_unprofiled: int, basis: str, place: str, *, named: bool) -> str:
    wait, exposed = (format_value(ns, Unit.NS) for ns in (late.wait_ns, late.exposed_ns))
    who = f"rank {late.rank}" if named else "it"
    most = f" (most of it {place})" if place else ""
    waits = f"{basis} the others wait {wait} per step for {who}{most}, {exposed} of it exposed"
    if not late.wait_ns:
        waits = f"{basis} the others do not wait for {who}"
    if late.late_ns is not None:
        longer = format_value(late.late_ns, Unit.NS)
        waits = (
            f"{who} works {longer} longer than the others, persistently in {num_unprofiled:,} unprofiled steps; {waits}"
        )
    explains = late.cause is not None and late.cause.excess_ns >= _EXPLAINS * late.wait_ns
    return f"{waits}; {_reason(late.cause)}" if late.cause is not None and explains else waits


def _saving(late: Stragglers) -> list[str]:
    """Return `at the pace of the others the step of 44.2 ms would take 30.1 ms to 33.5 ms less`, if that is known."""
    if late.saves_ns is None:
        return []
    saves, step = format_range(*late.saves_ns, Unit.NS, grain=0), format_value(late.step_ns, Unit.NS)
    return [f"at the pace of the others the step of {step} would take {saves} less (95 % CI)"]


def _replayed(gain: JobGain | None, *, several: bool) -> list[str]:
    """Return `if no rank waited for it, the step of 1.11 s would take 933 ms less (replay)`, or no gain."""
    if gain is None:
        return []
    step, whom = format_value(gain.change.now_ns, Unit.NS), "them" if several else "it"
    if gain.is_nothing:
        pace = ": the hosts set the pace" if gain.is_host_bound else ""
        return [f"but if no rank waited for {whom}, the step of {step} would gain nothing (replay){pace}"]
    text = f"if no rank waited for {whom}, the step of {step} would take {gain.words} less (replay)"
    if gain.change.noise_ns is not None and not gain.change.is_shorter:
        return [f"{text}, which is not more than the noise of these steps"]
    return [text]


def _reason(cause: Lateness) -> str:
    """Return `its host-bound time in forward is 1.00 s longer than theirs, 0.90 s of it aten::sort at train.py:4`.

    Of the host itself, `its host takes 1.00 s longer than theirs in aten::sort at train.py:4`.
    """
    excess, (what, place) = format_value(cause.excess_ns, Unit.NS), _what_and_place(cause)
    if cause.category == HOST:
        return f"its host takes {excess} longer than theirs in {what}{place}"
    if cause.category == _UNRECORDED:
        share = format_value(cause.share_pct, Unit.PERCENT)
        return f"its device is held for {excess} longer than theirs ({share} of its step) by {_NOT_SHOWN}"
    text = f"its {category_term(cause.category)} time in {cause.phase} is {excess} longer than theirs"
    if cause.what and cause.what_excess_ns > 0:
        part = format_value(cause.what_excess_ns, Unit.NS)
        text += f", {part} of it {what}{place}"
    return text


def _what_and_place(cause: Lateness) -> tuple[str, str]:
    place = f" at {cause.line}" if cause.line else f", before {cause.before}" if cause.before else ""
    return "the data loader" if _LOADS.match(cause.what) else cause.what, place


def _in_short(cause: Lateness) -> str:
    """Return `its host takes 1.00 s longer in aten::sort at train.py:4`, or `its host-bound time in forward is ...`."""
    excess, (what, _) = format_value(cause.excess_ns, Unit.NS), _what_and_place(cause)
    if cause.category == HOST:
        at_line = f" at {cause.line.partition(' ')[0]}" if cause.line else ""
        return f"its host takes {excess} longer in {what}{at_line}"
    if cause.category == _UNRECORDED:
        return f"its device is held by {_NOT_SHOWN}"
    return f"its {category_term(cause.category)} time in {plain_phase(cause.phase)} is {excess} longer"


def _straggler(
    ranks: Sequence[int], waits: CausedWaits, rank: int, cause: Lateness | None, late_ns: int | None
) -> Straggler:
    index = ranks.index(rank)
    wait_ns, exposed_ns = (
        round(float(waits.caused(values)[index]) / waits.num_steps) for values in (waits.once_ns, waits.exposed_ns)
    )
    return Straggler(rank, wait_ns, exposed_ns, late_ns, cause)


def _not_confirmed(
    job: Job, unprofiled: UnprofiledLateness, causes: Mapping[int, Lateness | None], num_steps: int
) -> str:
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


def _not_steady(job: Job, late: StragglerRanks, num_steps: int) -> str:
    """Return why no straggler is named where others wait for some ranks; "" where they wait for none."""
    if not late.candidates:
        return ""
    if late.is_in_each:
        noun, which = "ranks" if len(late.candidates) > 1 else "rank", "both" if num_steps == 2 else "each"
        too_few = f"{num_steps:,} traced steps are too few to name a straggler"
        return f"{too_few}; the others wait for {noun} {format_ranks(late.candidates)} in {which}."
    return f"{_waited_for(job, late.candidates, num_steps)}, too irregularly to name a straggler."


def _waited_for(job: Job, ranks: Sequence[int], num_steps: int) -> str:
    noun = "ranks" if len(ranks) > 1 else "rank"
    return f"{in_traced_steps(job, num_steps).capitalize()} the others wait for {noun} {format_ranks(ranks)}"
