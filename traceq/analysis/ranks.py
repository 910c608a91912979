"""Which rank do the others wait for, and what makes it late?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceq.analysis._collective_skew import skew_table, skew_view
from traceq.analysis._wording import MOST_RANKS, category_term, more_rows, per_step, scope
from traceq.facts.comm.rank_collectives import rank_calls
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.lateness import Lateness, PhaseCategory, busy_ns, cells_of, lateness
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.intervals import Spans, intersect, measure, spans
from traceq.model import Caveat, Trace
from traceq.report import Finding, Report, Table, column
from traceq.units import Unit, format_value

POSITION = 55

_STRAGGLER, _WAITS, _BALANCED = "straggler", "waits", "balanced"
_LATE, _LEAST_SHARE = 0.25, 0.05
"""A straggler waits less than this part of the others' median, and that median is this part of the time or more."""
_LOADS = re.compile(f"^Python in {LOADER}")
_NOT_ONE_JOB = Caveat("not_one_job", "the traces were recorded minutes apart: their collectives are not compared")


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank's counted collectives over the whole trace, its step (mean), and, for the straggler, why it is late.

    `exposed_wait_ns` is the part of the waits in which nothing computes; `offset_ns` of the rank's clock, within
    `offset_pm_ns`. None or "" where unknown; no verdict without collectives.
    """

    key: str = column("key", is_hidden=True)
    rank: int = column("rank", Unit.COUNT)
    num_steps: int = column("steps compared", Unit.COUNT, is_hidden=True)
    step_ns: int = column("step", Unit.NS)
    busy_ns: int = column("compute", Unit.NS)
    num: int = column("collectives", Unit.COUNT, is_hidden=True)
    wait_ns: int | None = column("waits", Unit.NS)
    exposed_wait_ns: int | None = column("exposed waits", Unit.NS)
    transfer_ns: int | None = column("transfers", Unit.NS)
    offset_ns: int | None = column("clock offset", Unit.DELTA_NS)
    offset_pm_ns: int | None = column("within", Unit.NS)
    verdict: str = column("verdict")
    late_phase: str = column("late in", is_hidden=True)
    late_category: str = column("late by", is_hidden=True)
    late_ns: int | None = column("longer than others", Unit.NS, is_hidden=True)
    late_what: str = column("what", is_hidden=True)
    late_what_ns: int | None = column("what takes longer", Unit.NS, is_hidden=True)
    late_line: str = column("line", is_hidden=True)
    late_before: str = column("before", is_hidden=True)

    def per_step(self) -> RankRow:
        """Return the row with mean waits and transfers of a counted step instead of sums."""
        means = (
            None if ns is None else round(ns / self.num_steps)
            for ns in (self.wait_ns, self.exposed_wait_ns, self.transfer_ns)
        )
        wait_ns, exposed_wait_ns, transfer_ns = means
        return replace(self, wait_ns=wait_ns, exposed_wait_ns=exposed_wait_ns, transfer_ns=transfer_ns)


@dataclass(frozen=True, slots=True)
class _Waits:
    """One rank's counted collectives over its whole trace, ns, and the number of steps that have any."""

    num: int
    num_steps: int
    wait_ns: int
    exposed_ns: int
    transfer_ns: int


@dataclass(frozen=True, slots=True)
class _Straggler:
    """The rank that is late; `typical_ns` is what the others wait for it in a step, `exposed_ns` the exposed part."""

    rank: int
    typical_ns: int
    exposed_ns: int
    cause: Lateness | None


@dataclass(frozen=True, slots=True, eq=False)
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
        return Report("ranks", (Table.of("ranks", "Ranks", RankRow, ()), skew_table(None, None)))
    waits = _waits(job, parts)
    cells = {rank.rank: dict(part.cells) for rank, part in zip(job.ranks, parts, strict=True)}
    straggler = _straggler(job, waits, cells)
    rows = [_row(job, rank, busy_ns(cells[rank.rank]), waits.get(rank.rank), straggler) for rank in job.ranks]
    skew = skew_table(job.issued, job.waits)
    views = (_view(rows, straggler), skew_view(skew, scope(job))) if waits else ()
    findings = (_finding(job, straggler),) if straggler is not None else ()
    caveats = _caveats(job) if job.is_concurrent else (_NOT_ONE_JOB,)
    return Report("ranks", (Table.of("ranks", "Ranks", RankRow, rows), skew), views, findings, caveats)


def _waits(job: Job, parts: Sequence[_Rank]) -> dict[int, _Waits]:
    """Return the waits by rank, without ranks that have no counted collective."""
    issued, waits = job.issued, job.waits
    counted = waits.counted[:, None] & (waits.duration >= 0)
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
            num_steps=len(np.unique(issued.columns.step[call])),
            wait_ns=int(wait.sum()),
            exposed_ns=measure(intersect(spans(start, start + wait), parts[part_of[rank]].exposed)),
            transfer_ns=int((waits.duration[selected, index] - wait).sum()),
        )
    return by_rank


def _straggler(job: Job, waits: dict[int, _Waits], cells: dict[int, dict[PhaseCategory, float]]) -> _Straggler | None:
    """Return the rank that waits least: less than a quarter of the others' median, if that is 5 % of the time.

    The time is the shortest window, as only collectives that all ranks ran count.
    """
    if len(waits) < 2:
        return None
    latest = min(waits, key=lambda rank: waits[rank].wait_ns)
    others = [waits_ for rank, waits_ in waits.items() if rank != latest]
    typical = float(np.median([waits_.wait_ns for waits_ in others]))
    window = min(_window_ns(rank) for rank in job.ranks if rank.rank in waits)
    if waits[latest].wait_ns >= _LATE * typical or typical < _LEAST_SHARE * window:
        return None
    exposed = float(np.median([waits_.exposed_ns for waits_ in others]))
    num_steps = waits[latest].num_steps
    cause = lateness(job.query, {rank: of_rank for rank, of_rank in cells.items() if rank in waits}, latest)
    return _Straggler(latest, round(typical / num_steps), round(exposed / num_steps), cause)


def _window_ns(rank: Outline) -> int:
    window = rank.steps.window
    return int(window[-1, 1] - window[0, 0])


def _row(job: Job, rank: Outline, busy_ns: int, waits: _Waits | None, straggler: _Straggler | None) -> RankRow:
    window = rank.steps.window[rank.steps.counted]
    offset_ns, offset_pm_ns = _clock(job, rank.rank)
    is_late = straggler is not None and straggler.rank == rank.rank
    cause = straggler.cause if straggler is not None and is_late else None
    return RankRow(
        key=f"rank {rank.rank}",
        rank=rank.rank,
        num_steps=waits.num_steps if waits else 0,
        step_ns=round(float(np.mean(window[:, 1] - window[:, 0]))),
        busy_ns=busy_ns,
        num=waits.num if waits else 0,
        wait_ns=waits.wait_ns if waits else None,
        exposed_wait_ns=waits.exposed_ns if waits else None,
        transfer_ns=waits.transfer_ns if waits else None,
        offset_ns=offset_ns,
        offset_pm_ns=offset_pm_ns,
        verdict="" if not waits else _BALANCED if straggler is None else _STRAGGLER if is_late else _WAITS,
        late_phase=cause.phase if cause else "",
        late_category=cause.category if cause else "",
        late_ns=cause.excess_ns if cause else None,
        late_what=cause.what if cause else "",
        late_what_ns=cause.what_excess_ns if cause else None,
        late_line=cause.line if cause else "",
        late_before=cause.before if cause else "",
    )


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


def _view(rows: Sequence[RankRow], straggler: _Straggler | None) -> Table:
    """Return waits and transfers per step; the first collective of each group does not count."""
    longest = sorted(rows, key=lambda row: (row.verdict != _STRAGGLER, -(row.wait_ns or 0)))[:MOST_RANKS]
    shown = [row.per_step() for row in rows if row in longest]
    result = "No rank is a straggler" if straggler is None else f"The others wait for rank {straggler.rank}"
    waits = "A wait is the time from a rank's start to the latest rank's; it is exposed while nothing computes."
    note = f"{result}. {waits} {more_rows(len(rows) - len(shown))}".strip()
    return Table.of("ranks", "Ranks (waits and transfers per step)", RankRow, shown, note=note).visible


def _finding(job: Job, straggler: _Straggler) -> Finding:
    wait, exposed = (format_value(ns, Unit.NS) for ns in (straggler.typical_ns, straggler.exposed_ns))
    wait = f"{wait} {per_step(job.ranks[0].steps)}"
    text = f"rank {straggler.rank} is the straggler: the others wait {wait} for it, {exposed} of it exposed"
    if straggler.cause is not None:
        text += f"; {_reason(straggler.cause)}"
    return Finding("straggler", "high", text, straggler.exposed_ns, f"rank {straggler.rank}")


def _reason(cause: Lateness) -> str:
    """Return `its host-bound time in forward is 1.00 s longer than theirs, 0.90 s of it aten::sort at train.py:4`."""
    excess = format_value(cause.excess_ns, Unit.NS)
    text = f"its {category_term(cause.category)} time in {cause.phase} is {excess} longer than theirs"
    if cause.what and cause.what_excess_ns > 0:
        part = format_value(cause.what_excess_ns, Unit.NS)
        place = f" at {cause.line}" if cause.line else f", before {cause.before}" if cause.before else ""
        text += f", {part} of it {'the data loader' if _LOADS.match(cause.what) else cause.what}{place}"
    return text


def _caveats(job: Job) -> tuple[Caveat, ...]:
    issued, clocks = job.issued, job.clocks
    caveats = []
    if left_out := sorted({rank.rank for rank in job.ranks} - set(issued.ranks)):
        text = f"ranks {', '.join(map(str, left_out))}: left out of the comparison, other rows name their collectives"
        caveats.append(Caveat("ranks_left_out", text))
    groups = np.unique(job.waits.instances.group).tolist()
    if scattered := sorted({issued.groups[group] for group in groups if not clocks.is_known[group]}):
        names = ", ".join(f"group {name}" if name else "all ranks" for name in scattered)
        text = f"ends of collectives scatter too much to compare clocks ({names}): waits are estimated from durations"
        caveats.append(Caveat("clocks", text))
    return tuple(caveats)
