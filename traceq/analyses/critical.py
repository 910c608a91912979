"""What decides how long a step takes: its critical path through host and device?"""

from __future__ import annotations

import numpy as np

from traceq.analyses.tally import group
from traceq.analyses.wording import a_step, more_rows, python_place, stepwise
from traceq.links.critical import On, critical_path
from traceq.links.kernel_names import short_kernel
from traceq.links.launches import device_work
from traceq.links.phases import phases
from traceq.links.steps import steps
from traceq.model import Run, Trace
from traceq.report import Cell, Column, Report, Table
from traceq.units import Unit, format_value

POSITION = 60

_TOP = 6
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
    """The critical path of the counted steps by what it leads through; on each rank the rows add up to its steps."""
    by_rank = {trace.rank: _rows(trace) for trace in run.traces}
    table = Table("critical", "Critical path", _COLUMNS, tuple(row for rows in by_rank.values() for row in rows))
    traces = [trace for trace in run.traces if len(device_work(trace))]
    if not traces:
        return Report("critical", (table,))
    slowest = max(traces, key=lambda trace: _total(by_rank[trace.rank]))
    return Report("critical", (table,), (_view(run, slowest, by_rank[slowest.rank]),))


def _rows(trace: Trace) -> list[_Row]:
    path, known = critical_path(trace), phases(trace).names
    groups = group([path.on, path.phase, path.name, path.line])
    num = np.bincount(group([groups.of_row, path.segment]).keys[:, 0], minlength=len(groups.keys)).tolist()
    num_steps = int(steps(trace).counted.sum())
    rows: list[_Row] = []
    for at, ns in enumerate(groups.sum(path.parts[:, 1] - path.parts[:, 0])):
        on, phase, name, line = groups.keys[at].tolist()
        words = (On(on).name.lower().replace("_", " "), known[phase], path.texts[name], path.texts[line])
        rows.append(("|".join(words), trace.rank, *words, num[at], ns, round(ns / num_steps)))
    return sorted(rows, key=lambda row: (-int(row[7]), str(row[0])))


def _total(rows: list[_Row]) -> int:
    return sum(int(row[8]) for row in rows)


def _view(run: Run, trace: Trace, rows: list[_Row]) -> Table:
    total = _total(rows)
    told: dict[tuple[Cell, ...], list[int]] = {}
    for _, _, kind, phase, name, line, num, _, step_ns in rows:
        both = told.setdefault((kind, phase, _said(str(kind), str(name)), line), [0, 0])
        both[:] = both[0] + int(num), both[1] + int(step_ns)
    longest = sorted(told.items(), key=lambda item: -item[1][1])
    shown = [(*words, num, step_ns, 100 * step_ns / total) for words, (num, step_ns) in longest[:_TOP]]
    sums: dict[str, int] = {}
    for row in rows:
        sums[str(row[2])] = sums.get(str(row[2]), 0) + int(row[8])
    largest = sorted(sums.items(), key=lambda item: -item[1])[:4]
    parts = ", ".join(f"{kind} {format_value(100 * ns / total, Unit.PERCENT)}" for kind, ns in largest)
    on = f" (rank {trace.rank}, the slowest)" if len(run.traces) > 1 else ""
    note = f"In all: {parts}. {more_rows(len(told) - _TOP)}".strip()
    return Table("critical", f"Critical path of {a_step(trace)}{on}", stepwise(_VIEW, run), tuple(shown), note=note)


def _said(kind: str, name: str) -> str:
    """The name for people: `elementwise_kernel<MulFunctor>`, `Memcpy DtoH`, `between ops`."""
    if kind == "python":
        return python_place(name)
    return short_kernel(name).strip() if kind in ("kernel", "collective", "copy") else name
