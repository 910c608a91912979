"""What decides how long a step takes: its critical path through host, device and the ranks it waits for?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.analyses.tally import group
from traceq.analyses.wording import a_step, more_rows, python_place, stepwise
from traceq.links.critical import CriticalPath, On, critical_path
from traceq.links.job_path import JobPath, job_path
from traceq.links.kernel_names import short_kernel
from traceq.links.launches import device_work
from traceq.links.phases import phases
from traceq.links.steps import steps
from traceq.model import Caveat, Run, Trace
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

_Row = tuple[int | str, ...]


def analyze(run: Run) -> Report:
    """The critical path of the counted steps by what it leads through; on each rank the rows add up to its steps, those
    of the job's path to the job's."""
    by_rank = {trace.rank: _rows(trace, critical_path(trace), int(steps(trace).counted.sum())) for trace in run.traces}
    table = Table("critical", "Critical path", _COLUMNS, tuple(row for rows in by_rank.values() for row in rows))
    found = job_path(run.traces)
    of_job = _rows_of_job(run, found) if isinstance(found, JobPath) else []
    tables = (table, Table("job_path", "Critical path across ranks", _COLUMNS, tuple(of_job)))
    caveats = (found,) if isinstance(found, Caveat) else ()
    traces = [trace for trace in run.traces if len(device_work(trace))]
    if not traces:
        return Report("critical", tables)
    if of_job:
        return Report("critical", tables, (_view_of_job(run, of_job),))
    slowest = max(traces, key=lambda trace: _total(by_rank[trace.rank]))
    return Report("critical", tables, (_view(run, slowest, by_rank[slowest.rank]),), caveats=caveats)


def _rows(trace: Trace, path: CriticalPath, num_steps: int) -> list[_Row]:
    known = phases(trace).names
    groups = group([path.on, path.phase, path.name, path.line])
    per_segment = group([path.segment, groups.of_row])  # segments ascend, which sorts in no time
    num = np.bincount(per_segment.keys[:, 1], minlength=len(groups.keys)).tolist()
    rows: list[_Row] = []
    for at, ns in enumerate(groups.sum(path.parts[:, 1] - path.parts[:, 0])):
        on, phase, name, line = groups.keys[at].tolist()
        words = (On(on).name.lower().replace("_", " "), known[phase], path.texts[name], path.texts[line])
        rows.append(("|".join(words), trace.rank, *words, num[at], ns, round(ns / num_steps)))
    return sorted(rows, key=lambda row: (-int(row[7]), str(row[0])))


def _rows_of_job(run: Run, found: JobPath) -> list[_Row]:
    pairs = zip(run.traces, found.paths, strict=True)
    rows = [row for trace, path in pairs if len(path.parts) for row in _rows(trace, path, len(found.number))]
    return sorted(rows, key=lambda row: (-int(row[7]), int(row[1]), str(row[0])))


def _total(rows: Sequence[_Row]) -> int:
    return sum(int(row[8]) for row in rows)


def _view(run: Run, trace: Trace, rows: Sequence[_Row]) -> Table:
    total = _total(rows)
    shown, num_left = _longest(rows, 2)
    sums: dict[str, int] = {}
    for row in rows:
        sums[str(row[2])] = sums.get(str(row[2]), 0) + int(row[8])
    largest = sorted(sums.items(), key=lambda item: -item[1])[:4]
    parts = ", ".join(f"{kind} {format_value(100 * ns / total, Unit.PERCENT)}" for kind, ns in largest)
    on = f" (rank {trace.rank}, the slowest)" if len(run.traces) > 1 else ""
    note = f"In all: {parts}. {more_rows(num_left)}".strip()
    return Table("critical", f"Critical path of {a_step(trace)}{on}", stepwise(_VIEW, run), shown, note=note)


def _view_of_job(run: Run, rows: Sequence[_Row]) -> Table:
    """The longest pieces on any rank, and how much of the path is on each."""
    shown, num_left = _longest(rows, 1)
    of_rank = {rank: [row for row in rows if row[1] == rank] for rank in {row[1] for row in rows}}
    ranks = sorted(of_rank, key=lambda rank: -_total(of_rank[rank]))
    total = format_value(_total(rows), Unit.NS)
    told = [f"{format_value(_total(of_rank[rank]), Unit.NS)} of {total} on rank {rank}" for rank in ranks]
    others = [f"the rest on {len(told) - _MOST_RANKS} more"] if len(told) > _MOST_RANKS else []
    note = f"{', '.join([*told[:_MOST_RANKS], *others])}. {more_rows(num_left)}".strip()
    title = f"Critical path of {a_step(run.traces[0])} through the ranks"
    return Table("job_path", title, stepwise((_COLUMNS[1], *_VIEW), run), shown, note=note)


def _longest(rows: Sequence[_Row], first: int) -> tuple[tuple[tuple[Cell, ...], ...], int]:
    """(the longest pieces from the column `first` on, those of one name for people together; how many are left)."""
    told: dict[tuple[Cell, ...], list[int]] = {}
    for row in rows:
        both = told.setdefault((*row[first:4], _said(str(row[2]), str(row[4])), row[5]), [0, 0])
        both[:] = both[0] + int(row[6]), both[1] + int(row[8])
    longest = sorted(told.items(), key=lambda item: -item[1][1])
    total = _total(rows)
    shown = tuple((*words, num, step_ns, 100 * step_ns / total) for words, (num, step_ns) in longest[:_TOP])
    return shown, len(told) - _TOP


def _said(kind: str, name: str) -> str:
    """The name for people: `elementwise_kernel<MulFunctor>`, `Memcpy DtoH`, `between ops`."""
    if kind == "python":
        return python_place(name)
    return short_kernel(name).strip() if kind in ("kernel", "collective", "copy") else name
