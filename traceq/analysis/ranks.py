"""Which rank do the others wait for, and what keeps it?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceq.analysis._skew import skew_table, skew_view
from traceq.analysis._wording import MOST_RANKS, more_rows, scope
from traceq.facts.comm.rank_collectives import own_calls
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.lateness import Lateness, busy_ns, cells_of, lateness
from traceq.facts.ranks.lateness import PhaseCategory as StepCell
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.intervals import Spans, intersect, measure, spans
from traceq.model import Caveat, Trace
from traceq.report import Cell, Column, Finding, Report, Table
from traceq.units import Unit, format_value

POSITION = 55

_LATE = 0.25
_TELLING = 0.05

_COLUMNS = (
    Column("key", "key"),
    Column("rank", "rank", Unit.COUNT),
    Column("num_steps", "steps compared", Unit.COUNT),
    Column("step_ns", "step", Unit.NS),
    Column("busy_ns", "computes", Unit.NS),
    Column("num", "collectives", Unit.COUNT),
    Column("wait_ns", "waits", Unit.NS),
    Column("exposed_wait_ns", "waits idle", Unit.NS),
    Column("transfer_ns", "transfers", Unit.NS),
    Column("offset_ns", "clock", Unit.DELTA_NS),
    Column("offset_pm_ns", "within", Unit.NS),
    Column("verdict", "verdict"),
    Column("late_phase", "late in"),
    Column("late_category", "late by"),
    Column("late_ns", "longer than others", Unit.NS),
    Column("late_what", "what"),
    Column("late_what_ns", "what takes longer", Unit.NS),
    Column("late_line", "line"),
    Column("late_before", "before"),
)
_SUMS = (6, 7, 8)
_WAITS, _VERDICT, _STRAGGLER = 6, 11, "straggler"
_VIEW = (1, 3, 4, 6, 7, 8, 9, 10, 11)
_LOADS = re.compile(f"^Python in {LOADER}")
_NOT_ONE_JOB = Caveat("not_one_job", "the traces were recorded minutes apart: their collectives are not compared")


@dataclass(frozen=True, slots=True)
class _Waited:
    """What one rank did in the counted collectives of its whole trace, ns, and in how many steps they lie."""

    num: int
    num_steps: int
    wait_ns: int
    exposed_ns: int
    transfer_ns: int


@dataclass(frozen=True, slots=True)
class _Late:
    """The straggler; `typical_ns` is what the others wait for it in a step, `exposed_ns` of it with nothing to do."""

    rank: int
    typical_ns: int
    exposed_ns: int
    cause: Lateness | None


@dataclass(frozen=True, slots=True, eq=False)
class _Rank:
    """What one rank does in a counted step, ns by phase and Doing, and when it is in a collective and nothing computes,
    ns by its own clock.
    """

    cells: tuple[tuple[StepCell, float], ...]
    exposed: Spans


def summarize(trace: Trace) -> _Rank:
    """What the others are compared with, and where waits are idle."""
    called = own_calls(trace).called
    ran = called.start >= 0
    inside = spans(called.start[ran] - trace.base_time_ns, called.end[ran] - trace.base_time_ns)
    return _Rank(tuple(cells_of(trace).items()), intersect(inside, activity(trace).when(TimeCategory.EXPOSED_COMM)))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Waits of every rank, and the straggler if there is one; nothing for a single rank."""
    if len(job.ranks) < 2:
        return Report("ranks", (Table("ranks", "Ranks", _COLUMNS, ()), skew_table(None, None)))
    waited = _waited(job, parts)
    cells = {rank.rank: dict(part.cells) for rank, part in zip(job.ranks, parts, strict=True)}
    late = _straggler(job, waited, cells)
    verdicts = {rank: _verdict(rank, late) for rank in waited}
    rows = tuple(
        (*_row(job, rank, busy_ns(cells[rank.rank]), waited, verdicts), *_why(rank.rank, late)) for rank in job.ranks
    )
    skew = skew_table(job.issued, job.waits)
    views = (_view(rows, late), skew_view(skew, scope(job))) if waited else ()
    findings = (_finding(late),) if late is not None else ()
    table = Table("ranks", "Ranks", _COLUMNS, rows)
    return Report("ranks", (table, skew), views, findings, _caveats(job) if job.is_one else (_NOT_ONE_JOB,))


def _waited(job: Job, parts: Sequence[_Rank]) -> dict[int, _Waited]:
    """By rank; ranks without a counted collective are left out."""
    issued, found = job.issued, job.waits
    counted = found.counted[:, None] & (found.duration >= 0)
    index = {rank.rank: at for at, rank in enumerate(job.ranks)}
    waited = {}
    for at, rank in enumerate(issued.ranks):
        mine = np.flatnonzero(counted[:, at])
        if len(mine) == 0:
            continue
        wait = found.wait[mine, at]
        start = issued.called.start[found.instances.call[mine, at]] - job.ranks[index[rank]].base_time_ns
        idle = intersect(spans(start, start + wait), parts[index[rank]].exposed)
        transfer_ns = int((found.duration[mine, at] - wait).sum())
        num_steps = len(np.unique(issued.called.step[found.instances.call[mine, at]]))
        waited[rank] = _Waited(len(mine), num_steps, int(wait.sum()), measure(idle), transfer_ns)
    return waited


def _straggler(job: Job, waited: dict[int, _Waited], cells: dict[int, dict[StepCell, float]]) -> _Late | None:
    """The rank that waits least: less than a quarter of the others' median, if this is a twentieth of the time.

    The time is the shortest window, as only collectives that all ranks ran count.
    """
    if len(waited) < 2:
        return None
    rank = min(waited, key=lambda one: waited[one].wait_ns)
    others = [own for other, own in waited.items() if other != rank]
    typical = float(np.median([own.wait_ns for own in others]))
    window = min(_window_ns(one) for one in job.ranks if one.rank in waited)
    if waited[rank].wait_ns >= _LATE * typical or typical < _TELLING * window:
        return None
    exposed = float(np.median([own.exposed_ns for own in others]))
    num_steps = waited[rank].num_steps
    cause = lateness(job.look, {one: told for one, told in cells.items() if one in waited}, rank)
    return _Late(rank, round(typical / num_steps), round(exposed / num_steps), cause)


def _window_ns(rank: Outline) -> int:
    window = rank.steps.window
    return int(window[-1, 1] - window[0, 0])


def _verdict(rank: int, late: _Late | None) -> str:
    return "balanced" if late is None else _STRAGGLER if rank == late.rank else "waits"


def _row(
    job: Job, rank: Outline, busy_ns: int, waited: dict[int, _Waited], verdicts: dict[int, str]
) -> tuple[Cell, ...]:
    found = rank.steps
    window_ns = (found.window[:, 1] - found.window[:, 0])[found.counted]
    own = waited.get(rank.rank)
    sums = (own.num, own.wait_ns, own.exposed_ns, own.transfer_ns) if own else (0, None, None, None)
    clock = _clock(job, rank.rank)
    mean_ns = round(float(np.mean(window_ns)))
    step = (own.num_steps if own else 0, mean_ns, busy_ns)
    return (f"rank {rank.rank}", rank.rank, *step, *sums, *clock, verdicts.get(rank.rank, ""))


def _why(rank: int, late: _Late | None) -> tuple[Cell, ...]:
    """What keeps the straggler; nothing for the others."""
    if late is None or late.rank != rank or (cause := late.cause) is None:
        return ("", "", None, "", None, "", "")
    excess = (cause.phase, cause.category, cause.excess_ns, cause.what, cause.what_excess_ns)
    return (*excess, cause.line, cause.before)


def _clock(job: Job, rank: int) -> tuple[int | None, int | None]:
    """(offset, uncertainty) ns in the largest group in which this rank's clock is known."""
    issued, times = job.issued, job.clocks
    if rank not in issued.ranks:
        return None, None
    at = issued.ranks.index(rank)
    known = np.flatnonzero(np.isfinite(times.offset[:, at]))
    if len(known) == 0:
        return None, None
    group = known[np.argmax(issued.member[known].sum(axis=1))]
    return round(float(times.offset[group, at])), round(float(times.uncertainty[group, at]))


def _view(rows: Sequence[tuple[Cell, ...]], late: _Late | None) -> Table:
    """Waits and transfers of a step; the first collective of each group does not count."""

    def each(row: tuple[Cell, ...], at: int) -> Cell:
        value, num_steps = row[at], row[2]
        return value / num_steps if at in _SUMS and isinstance(value, int) and isinstance(num_steps, int) else value

    longest = sorted(rows, key=lambda row: (row[_VERDICT] != _STRAGGLER, -int(row[_WAITS] or 0)))[:MOST_RANKS]
    shown = tuple(tuple(each(row, at) for at in _VIEW) for row in rows if row in longest)
    who = "balanced: no rank keeps the others waiting" if late is None else f"rank {late.rank} keeps the others waiting"
    note = f"{who[0].upper()}{who[1:]}. A wait lasts from a rank's own start to the latest; idle: nothing computes."
    note = f"{note} {more_rows(len(rows) - len(shown))}".strip()
    return Table(
        "ranks", "Ranks (waits and transfers of a step)", tuple(_COLUMNS[at] for at in _VIEW), shown, note=note
    )


def _finding(late: _Late) -> Finding:
    waits_, idle = (format_value(ns, Unit.NS) for ns in (late.typical_ns, late.exposed_ns))
    text = f"rank {late.rank} is the straggler: the others wait {waits_} of a step for it, {idle} with nothing to do"
    if late.cause is not None:
        text += f"; {_because(late.cause)}"
    return Finding("straggler", "high", text, late.exposed_ns, f"rank {late.rank}")


def _because(cause: Lateness) -> str:
    """What keeps it, in words."""
    more = format_value(cause.excess_ns, Unit.NS)
    text = f"its {cause.category.replace('_', ' ')} in {cause.phase} takes {more} more than theirs"
    if cause.what and cause.what_excess_ns > 0:
        part = format_value(cause.what_excess_ns, Unit.NS)
        at = f" at {cause.line}" if cause.line else f", before {cause.before}" if cause.before else ""
        text += f", {part} of it {'the data loader' if _LOADS.match(cause.what) else cause.what}{at}"
    return text


def _caveats(job: Job) -> tuple[Caveat, ...]:
    issued, times = job.issued, job.clocks
    caveats = []
    if left_out := sorted({rank.rank for rank in job.ranks} - set(issued.ranks)):
        text = f"ranks {', '.join(map(str, left_out))}: other rows name their collectives; left out of the comparison"
        caveats.append(Caveat("ranks_left_out", text))
    refused = sorted({issued.groups[g] for g in np.unique(job.waits.instances.group).tolist() if not times.known[g]})
    if refused:
        which = ", ".join(f"group {name}" if name else "all ranks" for name in refused)
        text = f"ends of collectives scatter too much to compare clocks ({which}): waits are by duration"
        caveats.append(Caveat("clocks", text))
    return tuple(caveats)
