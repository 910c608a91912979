"""What decides how long a step takes: its critical path through host, device and the ranks it waits for?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceq.analysis._parts import of_all
from traceq.analysis._wording import a_step, more_rows, python_place, stepwise
from traceq.facts.events.kernel_names import short_kernel
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.job_critical_path import JobPath, Legs, Trail, job_path, path_along, trail
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.stalls.critical_path import CriticalPath, On, critical_path
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.grouping import group
from traceq.model import Caveat, Trace
from traceq.report import Cell, Column, Report, Table
from traceq.units import Unit, format_value

POSITION = 60

_TOP = 6
_MOST_RANKS = 3
_COLUMNS = (
    Column("key", "key"),
    Column("rank", "rank", Unit.COUNT),
    Column("kind", "through"),
    Column("phase", "phase"),
    Column("name", "name"),
    Column("line", "line"),
    Column("num", "num", Unit.COUNT),
    Column("ns", "time", Unit.NS),
    Column("step_ns", "a step", Unit.NS),
)
_VIEW = (*_COLUMNS[2:7], _COLUMNS[8], Column("share", "share", Unit.PERCENT))

_Row = tuple[str, int, str, str, str, str, int, int, int]


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's rows, and what its path comes to of the collectives in which ranks meet."""

    rows: tuple[_Row, ...]
    trail: Trail


def summarize(trace: Trace) -> _Rank:
    """The critical path of the counted steps by what it leads through; the rows add up to the steps."""
    return _Rank(tuple(_rows(trace, critical_path(trace), int(steps(trace).counted.sum()))), trail(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """The rows of all ranks, and those of the job's path, which add up to the job's steps."""
    table = Table("critical", "Critical path", _COLUMNS, of_all(parts))
    found = job_path(job, [part.trail for part in parts])
    of_job = _rows_of_job(job, found) if isinstance(found, JobPath) else []
    tables = (table, Table("job_path", "Critical path across ranks", _COLUMNS, tuple(of_job)))
    caveats = (found,) if isinstance(found, Caveat) else ()
    ranks = [(rank, part.rows) for rank, part in zip(job.ranks, parts, strict=True) if rank.has_device]
    if not ranks:
        return Report("critical", tables)
    if of_job:
        return Report("critical", tables, (_view_of_job(job, of_job),))
    slowest = max(ranks, key=lambda each: _total(each[1]))
    return Report("critical", tables, (_view(job, *slowest),), caveats=caveats)


def _rows(trace: Trace, path: CriticalPath, num_steps: int) -> list[_Row]:
    known = phases(trace).names
    groups = group([path.on, path.phase, path.name, path.line])
    ns = path.parts[:, 1] - path.parts[:, 0]
    num, _ = groups.by_part(path.segment, ns)
    rows: list[_Row] = []
    for at, total in enumerate(groups.sum(ns)):
        on, phase, name, line = groups.keys[at].tolist()
        words = (On(on).name.lower().replace("_", " "), known[phase], path.texts[name], path.texts[line])
        rows.append(("|".join(words), trace.rank, *words, num[at], total, round(total / num_steps)))
    return sorted(rows, key=lambda row: (-row[7], row[0]))


def _rows_of_job(job: Job, found: JobPath) -> list[_Row]:
    both, num_steps = zip(job.ranks, found.legs, strict=True), len(found.number)
    led = [(rank.rank, (legs, num_steps)) for rank, legs in both if len(legs)]
    rows = [row for of_rank in job.look(_rows_along, led) for row in of_rank]
    return sorted(rows, key=lambda row: (-row[7], row[1], row[0]))


def _rows_along(trace: Trace, asked: tuple[Legs, int]) -> list[_Row]:
    """The rows of some legs of one rank."""
    legs, num_steps = asked
    return _rows(trace, path_along(trace, legs), num_steps)


def _total(rows: Sequence[_Row]) -> int:
    return sum(row[8] for row in rows)


def _view(job: Job, rank: Outline, rows: Sequence[_Row]) -> Table:
    total = _total(rows)
    shown, num_left = _longest(rows, 2)
    sums: dict[str, int] = {}
    for row in rows:
        sums[row[2]] = sums.get(row[2], 0) + row[8]
    largest = sorted(sums.items(), key=lambda item: -item[1])[:4]
    parts = ", ".join(f"{kind} {format_value(100 * ns / total, Unit.PERCENT)}" for kind, ns in largest)
    on = f" (rank {rank.rank}, the slowest)" if len(job.ranks) > 1 else ""
    note = f"In all: {parts}. {more_rows(num_left)}".strip()
    return Table("critical", f"Critical path of {a_step(rank.steps)}{on}", stepwise(_VIEW, job), shown, note=note)


def _view_of_job(job: Job, rows: Sequence[_Row]) -> Table:
    """The longest pieces on any rank, and how much of the path is on each."""
    shown, num_left = _longest(rows, 1)
    of_rank = {rank: [row for row in rows if row[1] == rank] for rank in {row[1] for row in rows}}
    ranks = sorted(of_rank, key=lambda rank: -_total(of_rank[rank]))
    total = format_value(_total(rows), Unit.NS)
    told = [f"{format_value(_total(of_rank[rank]), Unit.NS)} of {total} on rank {rank}" for rank in ranks]
    others = [f"the rest on {len(told) - _MOST_RANKS} more"] if len(told) > _MOST_RANKS else []
    note = f"{', '.join([*told[:_MOST_RANKS], *others])}. {more_rows(num_left)}".strip()
    title = f"Critical path of {a_step(job.ranks[0].steps)} through the ranks"
    return Table("job_path", title, stepwise((_COLUMNS[1], *_VIEW), job), shown, note=note)


def _longest(rows: Sequence[_Row], first: int) -> tuple[tuple[tuple[Cell, ...], ...], int]:
    """(the longest pieces from the column `first` on, those of one name for people together; how many are left)."""
    told: dict[tuple[Cell, ...], list[int]] = {}
    for row in rows:
        both = told.setdefault((*row[first:4], _said(row[2], row[4]), row[5]), [0, 0])
        both[:] = both[0] + row[6], both[1] + row[8]
    longest = sorted(told.items(), key=lambda item: -item[1][1])
    total = _total(rows)
    shown = tuple((*words, num, step_ns, 100 * step_ns / total) for words, (num, step_ns) in longest[:_TOP])
    return shown, len(told) - _TOP


def _said(kind: str, name: str) -> str:
    """The name for people: `elementwise_kernel<MulFunctor>`, `Memcpy DtoH`, `between ops`."""
    if kind == "python":
        return python_place(name)
    return short_kernel(name).strip() if kind in ("kernel", "collective", "copy") else name
