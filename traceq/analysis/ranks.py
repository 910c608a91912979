"""Which rank do the others wait for, and what makes it late?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from traceq.analysis import sentences
from traceq.analysis._basis import JobGain, job_gain, mean_step_ns
from traceq.analysis._wording import MOST_RANKS, category_term, in_traced_steps, more_rows, scope
from traceq.causes.stragglers import StragglerRanks, UnprofiledLateness, straggler_ranks
from traceq.claims.claim import AT_MOST, BY_JOB_REPLAY, BY_UNPROFILED, Basis, Claim, Measure, Subject, measured
from traceq.claims.limits import MUCH, NOTABLE
from traceq.claims.saying import plain_phase
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, algbw_gbps, busbw_gbps
from traceq.facts.comm.rank_collectives import rank_calls
from traceq.facts.ranks.arrival_waits import ArrivalWaits, latest_rank
from traceq.facts.ranks.caused_waits import CausedWaits, caused_waits
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.job_collectives import JobCollectives
from traceq.facts.ranks.lateness import HOST, Lateness, PhaseCategory, busy_ns, cells_of, lateness
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import Spans, intersect, measure, sorted_unique, spans
from traceq.model import Caveat, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, name_ranks
from traceq.whatif.interventions import WithoutStraggler

_STRAGGLER, _UNSTEADY, _WAITS, _BALANCED, _OPEN = "straggler", "irregular", "waits", "balanced", "undecided"


@frozen
class RankRow:
    """Steps that all ranks count: collectives, the mean step, and why the straggler is late."""

    key: str = column("key", is_hidden=True)
    rank: int = column("rank", Unit.COUNT)
    num_steps: int = column("steps compared", Unit.COUNT, is_hidden=True)
    step_ns: int = column("step", Unit.NS)
    busy_ns: int = column("compute", Unit.NS)
    """Kernels other than collectives run."""
    num: int = column("collectives", Unit.COUNT, is_hidden=True)
    """Collectives that all ranks ran."""
    wait_ns: int | None = column("waits", Unit.NS)
    """Until the latest start, sum."""
    exposed_wait_ns: int | None = column("exposed waits", Unit.NS)
    """Of `wait_ns`, nothing computes."""
    transfer_ns: int | None = column("transfers", Unit.NS)
    """The rest of the time in collectives."""
    caused_ns: int | None = column("others wait for it", Unit.NS)
    """Others wait for it."""
    offset_ns: int | None = column("clock offset", Unit.DELTA_NS)
    """Of its clock."""
    offset_pm_ns: int | None = column("within", Unit.NS)
    """Plus or minus."""
    verdict: str = column("verdict")
    """`straggler`, `irregular` (waited for, too irregularly), `waits`, `balanced`, `undecided` (too few steps); ""
    without a common collective.
    """
    late_phase: str = column("late in", is_hidden=True)
    late_category: str = column("late by", is_hidden=True)
    late_ns: int | None = column("longer than others", Unit.NS, is_hidden=True)
    late_what: str = column("what", is_hidden=True)
    late_what_ns: int | None = column("what takes longer", Unit.NS, is_hidden=True)
    late_line: str = column("line", is_hidden=True)
    late_before: str = column("before", is_hidden=True)
    """Op after the longest stretch of Python."""

    def per_step(self) -> RankRow:
        """Return the row with mean waits and transfers of a counted step instead of sums."""
        names = ("wait_ns", "exposed_wait_ns", "transfer_ns", "caused_ns")
        sums = {name: ns for name in names if (ns := getattr(self, name)) is not None}
        return replace(self, **{name: round(ns / self.num_steps) for name, ns in sums.items()})


@frozen
class _Waits:
    """One rank's collectives in the steps that are compared, ns."""

    num: int
    wait_ns: int
    exposed_ns: int
    transfer_ns: int


@frozen(eq=False)
class _Rank:
    """One rank's counted step by phase and category, ns, and its exposed communication, ns by its own clock."""

    cells: tuple[tuple[PhaseCategory, float], ...]
    exposed: Spans


def summarize(trace: Trace) -> _Rank:
    """Return the rank's step by phase and category, and when its collectives are exposed."""
    calls = rank_calls(trace).columns
    ran = calls.start >= 0
    inside = spans(calls.start[ran] - trace.base_time_ns, calls.end[ran] - trace.base_time_ns)
    return _Rank(tuple(cells_of(trace).items()), intersect(inside, activity(trace).when(TimeCategory.EXPOSED_COMM)))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the waits of every rank, and the straggler if there is one; nothing for a single rank."""
    if len(job.ranks) < 2:
        return Report("ranks", _tables((), (), ()))
    exposed = {rank.rank: part.exposed + rank.base_time_ns for rank, part in zip(job.ranks, parts, strict=True)}
    caused = caused_waits(job, exposed)  # on the clock of the job's calls
    waits = _waits(job, parts, caused)
    cells = {rank.rank: dict(part.cells) for rank, part in zip(job.ranks, parts, strict=True)}
    step_ns = min(mean_step_ns(rank.steps) for rank in job.ranks if rank.rank in waits or not waits)
    late = find_stragglers(job, caused, cells) if len(waits) > 1 else Stragglers((), "")
    sums = dict(zip(job.issued.ranks, caused.caused(caused.ns).tolist(), strict=True))
    rows = [
        _row(
            job, rank, busy_ns(cells[rank.rank]), waits.get(rank.rank), late, sums.get(rank.rank, 0.0), caused.num_steps
        )
        for rank in job.ranks
    ]
    by_cause = caused_wait_rows(job, caused)
    tables = _tables(rows, _skew_rows(job.issued, job.waits) if len(job.waits) else (), by_cause)
    views: tuple[Table, ...] = ()
    if waits:
        waits_by_cause = caused_wait_view(by_cause, caused.num_steps, step_ns)
        views = (_view(job, rows, late), *waits_by_cause, _skew_view(tables[1], scope(job)))
    caveats = (Caveat("not_one_job", sentences.NOT_ONE_JOB),)
    if job.is_concurrent:  # where ranks wait long, one may be late though the recording is too short to tell
        undecided = (Caveat("stragglers_undecided", late.undecided),) if late.is_suspected else ()
        caveats = (*_caveats(job), *undecided)
    first = tuple(view.without("wait_ns", "offset_ns", "offset_pm_ns") for view in views[:1])
    return Report("ranks", tables, views, straggler_finding(job, late, by_cause), caveats, first=first)


def _waits(job: Job, parts: Sequence[_Rank], caused: CausedWaits) -> dict[int, _Waits]:
    """Return the waits by rank, without ranks that have no counted collective."""
    issued, waits = job.issued, job.waits
    counted = caused.counted[:, None] & (waits.duration >= 0)
    part_of = {rank.rank: number for number, rank in enumerate(job.ranks)}
    by_rank = {}
    for index, rank in enumerate(issued.ranks):
        selected = np.flatnonzero(counted[:, index])
        if len(selected) == 0:
            continue
        wait, call = waits.wait[selected, index], waits.instances.call[selected, index]
        start = issued.columns.start[call] - job.ranks[part_of[rank]].base_time_ns
        by_rank[rank] = _Waits(
            num=len(selected),
            wait_ns=int(wait.sum()),
            exposed_ns=measure(intersect(spans(start, start + wait), parts[part_of[rank]].exposed)),
            transfer_ns=int((waits.duration[selected, index] - wait).sum()),
        )
    return by_rank


def _row(
    job: Job, rank: Outline, busy_ns: int, waits: _Waits | None, late: Stragglers, caused_ns: float, num_steps: int
) -> RankRow:
    offset_ns, offset_pm_ns = _clock(job, rank.rank)
    straggler = next((each for each in late.ranks if each.rank == rank.rank), None)
    cause = straggler.cause if straggler is not None else None
    return RankRow(
        key=f"rank {rank.rank}",
        rank=rank.rank,
        num_steps=num_steps if waits else 0,
        step_ns=round(mean_step_ns(rank.steps)),
        busy_ns=busy_ns,
        num=waits.num if waits else 0,
        wait_ns=waits.wait_ns if waits else None,
        exposed_wait_ns=waits.exposed_ns if waits else None,
        transfer_ns=waits.transfer_ns if waits else None,
        caused_ns=round(caused_ns) if waits else None,
        offset_ns=offset_ns,
        offset_pm_ns=offset_pm_ns,
        verdict=_verdict(rank.rank, late) if waits else "",
        late_phase=cause.phase if cause else "",
        late_category=cause.category if cause else "",
        late_ns=cause.excess_ns if cause else None,
        late_what=cause.what if cause else "",
        late_what_ns=cause.what_excess_ns if cause else None,
        late_line=cause.line if cause else "",
        late_before=cause.before if cause else "",
    )


def _verdict(rank: int, late: Stragglers) -> str:
    if late.undecided:
        return _OPEN
    if not late.ranks and rank in late.unsteady:
        return _OPEN if late.is_too_short else _UNSTEADY
    if not late.ranks:
        return _WAITS if late.unsteady else _BALANCED
    return _STRAGGLER if rank in {each.rank for each in late.ranks} else _WAITS


def _clock(job: Job, rank: int) -> tuple[int | None, int | None]:
    """Return (offset, uncertainty) ns in the largest group in which this rank's clock is known."""
    issued, clocks = job.issued, job.clocks
    if rank not in issued.ranks:
        return None, None
    index = issued.ranks.index(rank)
    groups = np.flatnonzero(np.isfinite(clocks.offset[:, index]))
    if len(groups) == 0:
        return None, None
    largest = groups[np.argmax(issued.member[groups].sum(axis=1))]
    return round(float(clocks.offset[largest, index])), round(float(clocks.uncertainty[largest, index]))


def _view(job: Job, rows: Sequence[RankRow], late: Stragglers) -> Table:
    """Return waits and transfers per step; the first collective of each group does not count."""
    longest = sorted(rows, key=lambda row: (row.verdict != _STRAGGLER, -(row.wait_ns or 0)))[:MOST_RANKS]
    shown = [row.per_step() for row in rows if row in longest]
    names = name_ranks([each.rank for each in late.ranks])
    result = sentences.WAITED_FOR.format(ranks=names) if late.ranks else sentences.NO_STRAGGLER
    if late.is_too_short:
        result = ""  # the note says why
    elif late.undecided:
        result = f"{late.undecided[0].upper()}{late.undecided[1:]}."
    is_shared = len(set(job.clock_hosts)) == 1 and any(row.offset_pm_ns == 0 for row in shown)
    clock = sentences.ONE_CLOCK.format(host=job.clock_hosts[0]) if is_shared and job.clock_hosts[0] else ""
    note = " ".join(filter(None, (result, late.note, clock, more_rows(len(rows) - len(shown)))))
    return Table.of("ranks", sentences.RANKS, RankRow, shown, note=note).visible


def _caveats(job: Job) -> tuple[Caveat, ...]:
    issued, clocks = job.issued, job.clocks
    caveats = []
    if left_out := sorted({rank.rank for rank in job.ranks} - set(issued.ranks)):
        caveats.append(Caveat("ranks_left_out", sentences.RANKS_LEFT_OUT.format(ranks=name_ranks(left_out))))
    waits = job.waits
    for is_possible, text in sentences.CLOCKS.items():
        groups = sorted_unique(waits.instances.group[waits.complete & (waits.possible == is_possible)]).tolist()
        if scattered := sorted({issued.groups[group] for group in groups if not clocks.is_known[group]}):
            names = ", ".join(f"group {name}" if name else "all ranks" for name in scattered)
            caveats.append(Caveat("clocks", text.format(groups=names)))
    return tuple(caveats)


@frozen
class _SkewRow:
    """Collectives of one name, group, dtype and phase, matched across ranks and summed."""

    key: str = column("key")
    name: str = column("collective")
    group: str = column("group")
    dtype: str = column("dtype")
    phase: str = column("phase")
    num_ranks: int = column("ranks", Unit.COUNT)
    num: int = column("num", Unit.COUNT)
    bytes: int | None = column("bytes", Unit.BYTES)
    """Larger side."""
    shortest_ns: int = column("transfer", Unit.NS)
    """Shortest duration over ranks: the transfer."""
    algbw_gbps: float | None = column("algbw", Unit.GBPS)
    busbw_gbps: float | None = column("busbw", Unit.GBPS)
    skew_ns: int = column("skew", Unit.NS)
    """From the first to the last start."""
    skew_max_ns: int = column("max skew", Unit.NS)
    last_rank: int = column("mostly last", Unit.COUNT)
    num_last: int = column("times", Unit.COUNT)


def _tables(
    rows: Sequence[RankRow], skew: Sequence[_SkewRow], by_cause: Sequence[_CausedWaitRow]
) -> tuple[Table, Table, Table]:
    return (
        Table.of("ranks", "Ranks", RankRow, rows),
        Table.of("skew", "Collectives across ranks", _SkewRow, skew),
        Table.of("caused_waits", "Waits by cause", _CausedWaitRow, by_cause),
    )


def _skew_view(table: Table, scope: str) -> Table:
    """Return the rows for people, those with most skew first; `scope` is what the rows cover."""
    columns = (
        *("name", "phase", "dtype", "num_ranks", "num", "bytes", "shortest_ns", "busbw_gbps"),
        *("skew_ns", "last_rank", "num_last"),
    )
    view = table.largest_first("skew_ns").select(*columns)
    return replace(view, title=sentences.SKEW.format(of=scope), note=sentences.SKEW_NOTE)


def _skew_rows(issued: JobCollectives, waits: ArrivalWaits) -> list[_SkewRow]:
    """Return one row for each collective, group, dtype and phase; the first instance of each group counts as well."""
    first_present = (waits.duration >= 0).argmax(axis=1)
    call = np.take_along_axis(waits.instances.call, first_present[:, None], axis=1)[:, 0]
    num_ranks = (waits.duration >= 0).sum(axis=1)
    groups = group([issued.group[call], issued.columns.name[call], issued.dtype[call], issued.phase[call]])
    size, last = issued.columns.size[call], latest_rank(waits)
    sizes, num_unsized = groups.sum(np.maximum(size, 0)), groups.sum(size < 0)
    sums = zip(groups.keys.tolist(), groups.count(), groups.sum(waits.shortest), groups.sum(waits.skew), strict=True)
    rows: dict[tuple[int, int, str, int], _SkewRow] = {}
    for index, ((number, name, dtype, phase), num, shortest_ns, skew_ns) in enumerate(sums):
        names = (
            COLLECTIVE_NAMES[name],
            issued.groups[number],
            issued.dtypes[dtype] if dtype >= 0 else "",
            issued.phases[phase],
        )
        selected = groups.group_ids == index
        size_bytes = None if num_unsized[index] else sizes[index]
        algbw = algbw_gbps(size_bytes, shortest_ns)
        num_last = np.bincount(last[selected], minlength=len(issued.ranks))
        ranks = int(num_ranks[selected].max())
        # not all ranks of a group need to be read
        members = max(int(issued.columns.group_size[call[selected]].max()), ranks)
        rows[number, name, names[2], phase] = _SkewRow(
            "|".join(names),
            *names,
            num_ranks=ranks,
            num=num,
            bytes=size_bytes,
            shortest_ns=shortest_ns,
            algbw_gbps=algbw,
            busbw_gbps=busbw_gbps(algbw, names[0], members),
            skew_ns=skew_ns,
            skew_max_ns=int(waits.skew[selected].max()),
            last_rank=issued.ranks[int(num_last.argmax())],
            num_last=int(num_last.max()),
        )
    return [row for _, row in sorted(rows.items())]  # the number of a dtype depends on what is read first


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


def caused_wait_view(rows: Sequence[_CausedWaitRow], num_steps: int, step_ns: float) -> tuple[Table, ...]:
    """Return the longest waits of a mean step of `step_ns`; no table where all of them are short."""
    means = [
        replace(row, caused_ns=round(row.caused_ns / num_steps), exposed_ns=round(row.exposed_ns / num_steps))
        for row in rows
    ]
    shown = [row for row in means if row.caused_ns >= NOTABLE * step_ns][:MOST_RANKS]
    note = more_rows(len(rows) - len(shown))
    view = Table.of("caused_waits", sentences.CAUSED_WAITS, _CausedWaitRow, shown, note=note).visible
    return (view,) if shown else ()


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
        flops_ratio=cause.flops_ratio or None,
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
        return sentences.HIDDEN.format(waited=waited, phase=min(hidden))
    they_are = "they are" if len(causes) > 1 else "it is"
    return sentences.NOT_CONFIRMED.format(waited=waited, they_are=they_are, num=unprofiled.num_steps)


def _not_steady(job: Job, late: StragglerRanks, num_steps: int) -> str:
    """Return why no straggler is named where others wait for some ranks; "" where they wait for none."""
    if not late.candidates:
        return ""
    if late.is_in_each:
        each = "both" if num_steps == 2 else "each"
        return sentences.TOO_FEW.format(num=num_steps, ranks=name_ranks(late.candidates), each=each)
    return sentences.IRREGULAR.format(waited=_waited_for(job, late.candidates, num_steps))


def _waited_for(job: Job, ranks: Sequence[int], num_steps: int) -> str:
    return sentences.WAITED.format(in_steps=in_traced_steps(job, num_steps).capitalize(), ranks=name_ranks(ranks))
