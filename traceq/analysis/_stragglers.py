"""Which ranks the others wait for: by the waits that they cause in traced steps, checked against unprofiled steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from traceq.analysis._basis import JobGain, job_gain
from traceq.analysis._wording import MOST_RANKS, category_term, in_traced_steps, more_rows
from traceq.causes.stragglers import StragglerRanks, UnprofiledLateness, straggler_ranks
from traceq.claims.claim import AT_MOST, BY_JOB_REPLAY, BY_UNPROFILED, Basis, Claim, Measure, Subject, measured
from traceq.claims.limits import MUCH, NOTABLE
from traceq.claims.saying import plain_phase
from traceq.facts.comm.collectives import COLLECTIVE_NAMES
from traceq.facts.ranks.caused_waits import CausedWaits
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.lateness import HOST, Lateness, PhaseCategory, lateness
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.report import Table, column
from traceq.units import Unit, name_ranks
from traceq.whatif.interventions import WithoutStraggler

_LOADS = re.compile(f"^Python in {LOADER}")
_UNRECORDED = TimeCategory.UNRECORDED.name.lower()


@frozen
class _CausedWaitRow:
    """Waits for one rank, the last to arrive in collectives of one kind and phase.

    They add up to its `caused_ns` in `ranks`.
    """

    key: str = column("key", is_hidden=True)
    rank: int = column("waits for rank", Unit.COUNT)
    phase: str = column("in phase")
    name: str = column("at collective")
    num_last: int = column("times last", Unit.COUNT)
    caused_ns: int = column("waits", Unit.NS)
    """Waits of the others, mean."""
    exposed_ns: int = column("exposed", Unit.NS)
    """Of `caused_ns`, they compute nothing."""


def caused_wait_rows(job: Job, waits: CausedWaits) -> tuple[_CausedWaitRow, ...]:
    """Return the waits by the rank that causes them, its phase and the collective, the longest first."""
    issued = job.issued
    waited = np.flatnonzero(waits.ns > 0)
    if not len(waited):
        return ()
    cause, instance = waits.cause[waited], waits.instance[waited]
    call = job.waits.instances.call[instance, cause]
    groups = group([cause, issued.phase[call], issued.columns.name[call]])
    num_peers = np.maximum(waits.peers.sum(axis=1), 1)
    _, first = np.unique(instance, return_index=True)
    num_last = np.bincount(groups.group_ids[first], minlength=len(groups.keys)).tolist()
    rows = []
    for index, (rank, phase, name) in enumerate(groups.keys.tolist()):
        selected = waited[groups.group_ids == index]
        names = (issued.phases[phase] if phase >= 0 else "", COLLECTIVE_NAMES[name])
        caused_ns, exposed_ns = (int(ns[selected].sum()) / num_peers[rank] for ns in (waits.ns, waits.exposed_ns))
        number = issued.ranks[rank]
        key = "|".join((f"rank {number}", *names))
        rows.append(_CausedWaitRow(key, number, *names, num_last[index], round(caused_ns), round(exposed_ns)))
    return tuple(sorted(rows, key=lambda row: (-row.caused_ns, row.key)))


def _most_of_waits_for(rank: int, rows: Sequence[_CausedWaitRow]) -> _CausedWaitRow | None:
    """Return where others wait for a rank, if at least half of the waits for it are there."""
    of_rank = [row for row in rows if row.rank == rank]
    is_most = of_rank and 2 * of_rank[0].caused_ns >= sum(row.caused_ns for row in of_rank)
    return of_rank[0] if is_most else None


def caused_wait_table(rows: Sequence[_CausedWaitRow]) -> Table:
    """Return the rows as sums over the compared steps."""
    return Table.of("caused_waits", "Waits by cause", _CausedWaitRow, rows)


def caused_wait_view(rows: Sequence[_CausedWaitRow], num_steps: int, step_ns: float) -> tuple[Table, ...]:
    """Return the longest waits of a mean step of `step_ns`; no table where all of them are short."""
    means = [
        replace(row, caused_ns=round(row.caused_ns / num_steps), exposed_ns=round(row.exposed_ns / num_steps))
        for row in rows
    ]
    shown = [row for row in means if row.caused_ns >= NOTABLE * step_ns][:MOST_RANKS]
    note = more_rows(len(rows) - len(shown))
    title = "What ranks wait for (waits per step, mean of the ranks that wait)"
    return (Table.of("caused_waits", title, _CausedWaitRow, shown, note=note).visible,) if shown else ()


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

    `num_unprofiled` is the number of unprofiled steps that decided, 0 where the traced ones did; by `saves_ns` of them
    (least, most) the job's step is shorter if all these ranks work as long as the others. `unsteady` ranks cause most
    of the waits, but too irregularly to be named, or in each of too few steps (`is_too_short`).
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
    )


def late_unprofiled(job: Job) -> frozenset[int] | None:
    """Return the ranks that are late throughout the unprofiled steps, none of too few; None where only traces exist."""
    late = straggler_ranks(job)
    return None if late.unprofiled is None and not late.undecided else frozenset(late.ranks)


def straggler_finding(job: Job, late: Stragglers, by_cause: Sequence[_CausedWaitRow]) -> tuple[Claim, ...]:
    """Return the claim on the late ranks, with why the first of them is late and where others wait for it."""
    if not late.ranks:
        return ()
    first, ranks = late.ranks[0], [each.rank for each in late.ranks]
    subject = Subject(rank=first.rank, key=f"rank {first.rank}")
    if (place := _most_of_waits_for(first.rank, by_cause)) is not None:
        subject = replace(subject, collective=place.name)
    if (cause := _reason(first)) is not None:
        subject = replace(subject, phase=cause.phase, line=cause.line)
    replayed = job_gain(job, WithoutStraggler(tuple(sorted(ranks)))) if late.saves_ns is None else None
    gain, by = late.saves_ns, BY_UNPROFILED
    if replayed is not None:
        gain, by = replayed.saved_ns, BY_JOB_REPLAY
    exposed_ns = sum(each.exposed_ns for each in late.ranks)
    if gain is None:  # ranks that cannot be replayed
        gain, by = (0, max(exposed_ns, cause.excess_ns if cause else 0)), AT_MOST
    measures = measured(
        wait_ns=first.wait_ns or None,
        exposed_ns=first.exposed_ns,
        waited_phase=plain_phase(place.phase) if place is not None else None,
        late_ns=first.late_ns,
        more_ranks=name_ranks(ranks[1:]) if len(ranks) > 1 else None,
        **_excess(cause),
        **_why_in_vain(replayed),
    )
    num_steps = late.num_unprofiled or late.num_traced * job.ranks[0].steps.marked
    return (
        Claim(
            "straggler",
            exposed_ns,
            subject,
            measures,
            gain=(round(gain[0]), round(gain[1])),
            gain_by=by,
            basis=Basis(num_steps, is_unprofiled=late.num_unprofiled > 0),
        ),
    )


def _reason(late: Straggler) -> Lateness | None:
    """Return what makes a rank late, if that explains the waits for it."""
    return late.cause if late.cause is not None and late.cause.excess_ns >= MUCH * late.wait_ns else None


def _excess(cause: Lateness | None) -> Mapping[str, Measure]:
    """Return what a late rank takes longer than the others: what its host does, or a category of time in a phase."""
    if cause is None:
        return {}
    if cause.category == _UNRECORDED:
        return {"unrecorded_ns": cause.excess_ns}
    is_host = cause.category == HOST
    return measured(
        excess_ns=cause.excess_ns,
        category=None if is_host else category_term(cause.category),
        what="the data loader" if _LOADS.match(cause.what) else cause.what,
        what_excess_ns=None if is_host or cause.what_excess_ns <= 0 else cause.what_excess_ns,
        before="" if cause.line else cause.before,
    )


def _why_in_vain(gain: JobGain | None) -> Mapping[str, Measure]:
    """Return why the step gains nothing if no rank waits for the late ones: by noise, or as the hosts set the pace."""
    if gain is None or gain.saved_ns[1]:
        return {}
    if not gain.is_nothing:
        return {"replayed_ns": round(gain.change.most_saved_ns)}
    return {"pace": "hosts"} if gain.is_host_bound else {}


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
        too_few = f"{num_steps:,} traced steps are too few to name a straggler"
        which = "both" if num_steps == 2 else "each"
        return f"{too_few}; the others wait for {name_ranks(late.candidates)} in {which}."
    return f"{_waited_for(job, late.candidates, num_steps)}, too irregularly to name a straggler."


def _waited_for(job: Job, ranks: Sequence[int], num_steps: int) -> str:
    return f"{in_traced_steps(job, num_steps).capitalize()} the others wait for {name_ranks(ranks)}"
