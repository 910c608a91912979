"""What determines the length of a step: its critical path through host, device and the ranks it waits for?"""

from __future__ import annotations

from collections.abc import Sequence

from traceq.analysis import sentences
from traceq.analysis._rank_rows import largest_sums, of_all
from traceq.analysis._wording import a_step, more_rows, python_or_host, python_place, until_done, with_step_headings
from traceq.causes.critical_path import CriticalPath, PathKind, critical_path
from traceq.causes.job_critical_path import JobPath, Legs, PathSummary, job_path, path_along, path_summary
from traceq.claims.limits import NOTABLE
from traceq.facts.events.kernel_names import short_kernel
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Caveat, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, format_value

_TOP = 6
_MOST_RANKS = 3


@frozen
class PathRow:
    """Pieces of a critical path; they add up to the rank's step, those of `job_path` to the job's."""

    key: str = column("key")
    rank: int = column("rank", Unit.COUNT)
    kind: str = column("kind")
    """`kernel`, `collective`, `copy`, `launch latency`, `queue`, `sync return`, `host op`, `python`, `allocation`,
    `data loader`, `before`, `unrecorded`, `spin wait`, `compiling`.
    """
    phase: str = column("phase")
    name: str = column("name")
    line: str = column("line")
    num: int = column("num", Unit.COUNT)
    dur_ns: int = column("time", Unit.NS)
    step_ns: int = column("", Unit.NS, is_per_step=True)


@frozen
class _Piece:
    """Rows with one name for people; `share` in percent of the path."""

    rank: int = column("rank", Unit.COUNT)
    kind: str = column("kind")
    phase: str = column("phase")
    name: str = column("name")
    line: str = column("line")
    num: int = column("num", Unit.COUNT)
    step_ns: int = column("", Unit.NS, is_per_step=True)
    share: float = column("share", Unit.PERCENT)


@frozen
class _Rank:
    """One rank's rows, and the summary of its path through the collectives in which ranks meet."""

    rows: tuple[PathRow, ...]
    path_summary: PathSummary


def summarize(trace: Trace) -> _Rank:
    """Return the critical path of the counted steps by kind, phase, name and line; the rows add up to the steps."""
    return _Rank(tuple(_rows(trace, critical_path(trace), int(steps(trace).counted.sum()))), path_summary(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks, and those of the job's path, which add up to the job's steps."""
    path = job_path(job, [part.path_summary for part in parts])
    of_job = _rows_of_job(job, path) if isinstance(path, JobPath) else []
    tables = (
        Table.of("critical", "Critical path", PathRow, of_all(parts)),
        Table.of("job_path", "Critical path across ranks", PathRow, of_job),
    )
    caveats = (path,) if isinstance(path, Caveat) else ()
    ranks = [(rank, part.rows) for rank, part in zip(job.ranks, parts, strict=True) if rank.has_device]
    if not ranks:
        return Report("critical", tables)
    if of_job:
        return Report("critical", tables, (_view_of_job(job, of_job),))
    slowest, rows = max(ranks, key=lambda pair: _total_ns(pair[1]))
    is_slowest = _total_ns(rows) >= (1 + NOTABLE) * min(_total_ns(each) for _, each in ranks)
    return Report("critical", tables, (_view(job, slowest, rows, is_slowest=is_slowest),), caveats=caveats)


def _rows(trace: Trace, path: CriticalPath, num_steps: int) -> list[PathRow]:
    phase_names = phases(trace).names
    groups = group([path.kind, path.phase, path.name, path.line])
    ns = path.parts[:, 1] - path.parts[:, 0]
    num, _ = groups.by_part(path.segment, ns)
    rows = []
    for index, total_ns in enumerate(groups.sum(ns)):
        kind, phase, name, line = groups.keys[index].tolist()
        names = (PathKind(kind).name.lower().replace("_", " "), phase_names[phase], path.texts[name], path.texts[line])
        step_ns = round(total_ns / num_steps)
        rows.append(PathRow("|".join(names), trace.rank, *names, num=num[index], dur_ns=total_ns, step_ns=step_ns))
    return sorted(rows, key=lambda row: (-row.dur_ns, row.key))


def _rows_of_job(job: Job, path: JobPath) -> list[PathRow]:
    num_steps = len(path.number)
    questions = [(rank.rank, (legs, num_steps)) for rank, legs in zip(job.ranks, path.legs, strict=True) if len(legs)]
    rows = [row for rank_rows in job.query(_rows_along, questions) for row in rank_rows]
    return sorted(rows, key=lambda row: (-row.dur_ns, row.rank, row.key))


def _rows_along(trace: Trace, legs_and_steps: tuple[Legs, int]) -> list[PathRow]:
    """Return the rows of some legs of one rank, over a number of steps."""
    legs, num_steps = legs_and_steps
    return _rows(trace, path_along(trace, legs), num_steps)


def _total_ns(rows: Sequence[PathRow]) -> int:
    return sum(row.step_ns for row in rows)


def _view(job: Job, rank: Outline, rows: Sequence[PathRow], *, is_slowest: bool) -> Table:
    """Return the longest pieces on one rank, and the total of each kind."""
    pieces, num_left = _longest(rows)
    total_ns = _total_ns(rows)
    kinds = largest_sums(rows, _display_kind, lambda row: (row.step_ns,))[:4]
    shares = ", ".join(f"{kind} {format_value(100 * ns / total_ns, Unit.PERCENT)}" for kind, (ns,) in kinds)
    on = f" (rank {rank.rank}{', the slowest' if is_slowest else ''})" if len(job.ranks) > 1 else ""
    title = sentences.CRITICAL.format(a_step=a_step(rank.steps), on=on)
    total = sentences.CRITICAL_TOTAL.format(shares=shares)
    note = " ".join(filter(None, (total, _on_waits(job, rows), until_done(rank, total_ns), more_rows(num_left))))
    return with_step_headings(Table.of("critical", title, _Piece, pieces, note=note).without("rank"), job)


def _on_waits(job: Job, rows: Sequence[PathRow]) -> str:
    """Return what the path of one rank does not know of its collectives; "" for a path without them."""
    if job.ranks[0].world_size < 2 or not any(row.kind == "collective" for row in rows):
        return ""
    return sentences.ACROSS_RANKS


def _view_of_job(job: Job, rows: Sequence[PathRow]) -> Table:
    """Return the longest pieces on any rank, and how much of the path is on each rank."""
    pieces, num_left = _longest(rows)
    ranks = largest_sums(rows, lambda row: row.rank, lambda row: (row.step_ns,))
    total = format_value(_total_ns(rows), Unit.NS)
    parts = [f"{format_value(ns, Unit.NS)} of {total} on rank {rank}" for rank, (ns,) in ranks[:_MOST_RANKS]]
    parts += [sentences.REST_OF_PATH.format(num=len(ranks) - _MOST_RANKS)] if len(ranks) > _MOST_RANKS else []
    title = sentences.JOB_PATH.format(a_step=a_step(job.ranks[0].steps))
    note = f"{', '.join(parts)}. {more_rows(num_left)}".strip()
    return with_step_headings(Table.of("job_path", title, _Piece, pieces, note=note), job)


def _longest(rows: Sequence[PathRow]) -> tuple[list[_Piece], int]:
    """Return (the longest pieces, those of one name for people as one; how many are left)."""

    def identity(row: PathRow) -> tuple[int, str, str, str, str]:
        return row.rank, _display_kind(row), row.phase, _display_name(row), row.line

    longest, total_ns = largest_sums(rows, identity, lambda row: (row.num, row.step_ns)), _total_ns(rows)
    pieces = [_Piece(*names, num, step_ns, 100 * step_ns / total_ns) for names, (num, step_ns) in longest[:_TOP]]
    return pieces, len(longest) - _TOP


def _display_kind(row: PathRow) -> str:
    return python_or_host(row.line) if row.kind == "python" else row.kind


def _display_name(row: PathRow) -> str:
    """Return the name for people: `elementwise_kernel<MulFunctor>`, `Memcpy DtoH`, `between ops`."""
    if row.kind == "python":
        return python_place(row.name)
    return short_kernel(row.name).strip() if row.kind in ("kernel", "spin wait", "collective", "copy") else row.name
