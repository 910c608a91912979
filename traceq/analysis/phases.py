"""Where does the time go, by phase of the step?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceq.analysis._parts import of_all
from traceq.analysis._wording import over_ranks
from traceq.analysis._worst_rank import on_the_worst_rank
from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import BEFORE_WINDOW, UNATTRIBUTED, phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.intervals import measure, measure_common, spans
from traceq.model import Category, Trace
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


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's rows, its phases as the main thread comes to them, and what is odd about them."""

    rows: tuple[_Row, ...]
    in_order: tuple[str, ...]
    finding: Finding | None


def summarize(trace: Trace) -> _Rank:
    """Host and device time of each phase over the whole trace; before_window and unattributed are always listed."""
    return _Rank(tuple(_rows(trace)), phases(trace).in_order, _long_backward(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """The rows of all ranks; people see sums over them."""
    rows = of_all(parts)
    order = tuple(dict.fromkeys(name for part in parts for name in part.in_order))
    views = (_view(job, rows, order),) if rows else ()
    found = on_the_worst_rank(job, (part.finding for part in parts))
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
        for mine in (
            counted & (done.doing != TimeCategory.EXPOSED_COMM),
            counted & (done.doing == TimeCategory.COMPUTE),
        )
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


def _view(job: Job, rows: Sequence[_Row], order: Sequence[str]) -> Table:
    """Sums over ranks, and GPU busy time of a step as the mean over ranks; phases with nothing in them are left out."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        sums[row[1]] = [a + b for a, b in zip(sums.get(row[1], [0] * 5), row[3:], strict=True)]
    names = [name for name in order if any(sums.get(name, ()))]
    num_steps = float(np.mean([len(rank.steps) for rank in job.ranks]))
    shown: list[tuple[Cell, ...]] = []
    for name in names:
        shown.append((name, *sums[name], sums[name][1] / num_steps / len(job.ranks)))
    columns: tuple[Column, ...] = (*_COLUMNS[1:2], *_COLUMNS[3:], Column("per_step_ns", "GPU busy a step", Unit.NS))
    note = f"{_RULES[rows[0][2]]}."
    if not any(rank.has_device for rank in job.ranks):
        columns, shown = columns[:2], [row[:2] for row in shown if row[1]]
    else:
        strays = {BEFORE_WINDOW, UNATTRIBUTED} & set(names)
        note += f" GPU work counts where it was launched{'' if strays else ', and none lacks its launch'}."
        if num_steps == len(job.ranks) == 1:
            columns, shown = columns[:-1], [row[:-1] for row in shown]
    return Table("phases", f"Phases ({over_ranks(job)})", columns, tuple(shown), note=note)
