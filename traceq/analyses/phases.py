"""Where does the time go, by phase of the step?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.intervals import intersect, measure, spans
from traceq.links.launches import device_work
from traceq.links.phases import BEFORE_WINDOW, UNATTRIBUTED, phases
from traceq.links.steps import steps
from traceq.model import Category, Run, Trace
from traceq.report import Cell, Column, Report, Table
from traceq.units import Unit

POSITION = 20

_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("name", "phase"),
    Column("rule", "rule"),
    Column("cpu_ns", "host", Unit.NS),
    Column("gpu_busy_ns", "GPU busy", Unit.NS),
    Column("gpu_sum_ns", "GPU sum", Unit.NS),
    Column("num_kernels", "kernels", Unit.COUNT),
    Column("num_gpu_ops", "GPU ops", Unit.COUNT),
)
_RULES = {
    "recorded": "declared by the recording",
    "annotations": "the main thread's outermost annotations",
    "structure": "inferred from optimizer, data loader and autograd (the trace has no annotations that tile the step)",
}


_Row = tuple[int, str, str, int, int, int, int, int]


def analyze(run: Run) -> Report:
    """Host and device time of each phase over the whole trace; before_window and unattributed are always listed."""
    rows = tuple(row for trace in run.traces for row in _rows(trace))
    views = (_view(run, rows),) if rows else ()
    return Report("phases", (Table("phases", "Phases", _COLUMNS, rows),), views)


def _rows(trace: Trace) -> list[_Row]:
    found, work = phases(trace), device_work(trace)
    is_kernel = trace.events.category[work.rows] == Category.KERNEL
    host = steps(trace).host
    stepped = spans(host[:, 0], host[:, 1])
    rows: list[_Row] = []
    for number, name in enumerate(found.names):
        mine = found.of_work == number
        parts = found.main.parts[found.main.label == number]
        cpu_ns = measure(intersect(parts, stepped))
        if number == found.other:
            cpu_ns = measure(stepped) - measure(intersect(found.main.parts, stepped))
        if mine.any() or cpu_ns or name in (BEFORE_WINDOW, UNATTRIBUTED):
            busy = measure(spans(work.start[mine], work.end[mine]))
            total = int((work.end - work.start)[mine].sum())
            num_kernels, num_ops = int(is_kernel[mine].sum()), int(mine.sum())
            rows.append((trace.rank, name, found.rule, cpu_ns, busy, total, num_kernels, num_ops))
    return rows


def _view(run: Run, rows: Sequence[_Row]) -> Table:
    """Sums over ranks, and GPU busy time of a step as the mean over ranks."""
    names = list(dict.fromkeys(row[1] for row in rows))
    num_steps = float(np.mean([len(steps(trace)) for trace in run.traces]))
    shown: list[tuple[Cell, ...]] = []
    for name in names:
        mine = np.array([row[3:] for row in rows if row[1] == name], np.int64)
        total: list[int] = mine.sum(axis=0).tolist()
        shown.append((name, *total, total[1] / num_steps / len(run.traces)))
    columns: tuple[Column, ...] = (*_COLUMNS[1:2], *_COLUMNS[3:], Column("per_step_ns", "GPU busy a step", Unit.NS))
    note = f"Phases: {_RULES[rows[0][2]]}."
    if all(len(device_work(trace)) == 0 for trace in run.traces):
        columns, shown = columns[:2], [row[:2] for row in shown if row[1]]
    else:
        note += " A launch from another thread counts to what the step's thread was in."
    over = f"sum of {len(run.traces)} ranks, " if len(run.traces) > 1 else ""
    return Table("phases", f"Phases ({over}whole trace)", columns, tuple(shown), note=note)
