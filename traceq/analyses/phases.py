"""Where does the time go, by phase of the step?"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from traceq.analyses.wording import over_ranks
from traceq.analyses.worst import on_the_worst_rank
from traceq.intervals import measure, measure_common, spans
from traceq.links.activity import Doing, activity, in_counted_steps
from traceq.links.launches import device_work
from traceq.links.phases import BEFORE_WINDOW, UNATTRIBUTED, phases
from traceq.links.steps import steps
from traceq.model import Category, Run, Trace
from traceq.report import Cell, Column, Finding, Report, Table
from traceq.units import Unit, format_value

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
    "recorded": "Phases are declared by the recording",
    "annotations": "Phases are the main thread's outermost annotations",
    "structure": "Phases are inferred from optimizer, data loader and autograd",
}


_FORWARD, _BACKWARD = re.compile(r"forward|\bfwd", re.IGNORECASE), re.compile(r"backward|\bbwd", re.IGNORECASE)
_FAR_OVER, _RECOMPUTES, _TELLING = 3.0, 2.6, 0.05

_Row = tuple[int, str, str, int, int, int, int, int]


def analyze(run: Run) -> Report:
    """Host and device time of each phase over the whole trace; before_window and unattributed are always listed."""
    rows = tuple(row for trace in run.traces for row in _rows(trace))
    views = (_view(run, rows),) if rows else ()
    found = on_the_worst_rank(run, _long_backward)
    return Report("phases", (Table("phases", "Phases", _COLUMNS, rows),), views, found)


def _rows(trace: Trace) -> list[_Row]:
    found, work = phases(trace), device_work(trace)
    is_kernel = trace.events.category[work.rows] == Category.KERNEL
    host = steps(trace).host
    stepped = spans(host[:, 0], host[:, 1])
    rows: list[_Row] = []
    for number, name in enumerate(found.names):
        mine = found.of_work == number
        parts = found.main.parts[found.main.label == number]
        cpu_ns = measure_common(parts, stepped)
        if number == found.other:
            cpu_ns = measure(stepped) - measure_common(found.main.parts, stepped)
        if mine.any() or cpu_ns or name in (BEFORE_WINDOW, UNATTRIBUTED):
            busy = measure(spans(work.start[mine], work.end[mine]))
            total = int((work.end - work.start)[mine].sum())
            num_kernels, num_ops = int(is_kernel[mine].sum()), int(mine.sum())
            rows.append((trace.rank, name, found.rule, cpu_ns, busy, total, num_kernels, num_ops))
    return rows


def _long_backward(trace: Trace) -> Finding | None:
    """Backward takes far more than twice as long as forward, exchange with other ranks aside.

    On a CPU the time of hooks is within that of the autograd engine's ops: it cannot be told there.
    """
    known, done = steps(trace), activity(trace)
    counted = in_counted_steps(trace)
    ns, computing_ns = (
        [int(done.ns[mine & np.isin(done.phase, _called(trace, name))].sum()) for name in (_FORWARD, _BACKWARD)]
        for mine in (counted & (done.doing != Doing.EXPOSED_COMM), counted & (done.doing == Doing.COMPUTE))
    )
    excess_ns, whole_ns = ns[1] - 2 * ns[0], int(done.ns[counted].sum())
    if not known.marked or not computing_ns[0] or ns[1] < _FAR_OVER * ns[0] or excess_ns < _TELLING * whole_ns:
        return None
    ratio = computing_ns[1] / computing_ns[0]
    why = "recomputes (checkpoints), or its kernels are slow" if ratio > _RECOMPUTES else "has hooks or other host work"
    each_ns = round(excess_ns / int(known.counted.sum()))
    text = (
        f"backward takes {ns[1] / ns[0]:.1f} times as long as forward and computes {ratio:.1f} times as long, where "
        f"2 is usual: it {why}; {format_value(each_ns, Unit.NS)} a step above that"
    )
    return Finding("long_backward", "medium", text, each_ns)


def _called(trace: Trace, name: re.Pattern[str]) -> list[int]:
    return [number for number, phase in enumerate(phases(trace).names) if name.search(phase)]


def _view(run: Run, rows: Sequence[_Row]) -> Table:
    """Sums over ranks, and GPU busy time of a step as the mean over ranks; phases with nothing in them are left out."""
    order = dict.fromkeys(name for trace in run.traces for name in phases(trace).in_order)
    names = [name for name in order if any(row[1] == name and any(row[3:]) for row in rows)]
    num_steps = float(np.mean([len(steps(trace)) for trace in run.traces]))
    shown: list[tuple[Cell, ...]] = []
    for name in names:
        mine = np.array([row[3:] for row in rows if row[1] == name], np.int64)
        total: list[int] = mine.sum(axis=0).tolist()
        shown.append((name, *total, total[1] / num_steps / len(run.traces)))
    columns: tuple[Column, ...] = (*_COLUMNS[1:2], *_COLUMNS[3:], Column("per_step_ns", "GPU busy a step", Unit.NS))
    note = f"{_RULES[rows[0][2]]}."
    if all(len(device_work(trace)) == 0 for trace in run.traces):
        columns, shown = columns[:2], [row[:2] for row in shown if row[1]]
    else:
        strays = {BEFORE_WINDOW, UNATTRIBUTED} & set(names)
        note += f" GPU work counts where it was launched{'' if strays else ', and none lacks its launch'}."
        if num_steps == len(run.traces) == 1:
            columns, shown = columns[:-1], [row[:-1] for row in shown]
    return Table("phases", f"Phases ({over_ranks(run)})", columns, tuple(shown), note=note)
