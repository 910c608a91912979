"""How busy is each device, where one process drives several?"""

from __future__ import annotations

from collections.abc import Sequence

from traceq.analysis._parts import Part, of_all
from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import is_communication
from traceq.intervals import measure, measure_common, sorted_unique, spans
from traceq.model import Category, Trace
from traceq.report import Column, Report, Table
from traceq.units import Unit

POSITION = 22

_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("device", "device", Unit.COUNT),
    Column("num_gpu_ops", "GPU ops", Unit.COUNT),
    Column("sum_ns", "GPU sum", Unit.NS),
    Column("busy_ns", "busy", Unit.NS),
    Column("compute_ns", "computes", Unit.NS),
    Column("idle_ns", "idle", Unit.NS),
    Column("busy_pct", "share", Unit.PERCENT),
)

_Row = tuple[int, int, int, int, int, int, int, float]


def summarize(trace: Trace) -> Part[_Row]:
    """Work of each device: how much of it over the whole trace, and of all windows the time in which it does anything,
    computes, and idles.
    """
    return Part(tuple(_rows(trace)))


def merge(job: Job, parts: Sequence[Part[_Row]]) -> Report:
    """The rows of all ranks; people see those of processes with several devices."""
    table = Table("devices", "Devices", _COLUMNS, of_all(parts))
    several = [row for part in parts if len(part.rows) > 1 for row in part.rows]
    note = "The partition below is of all devices of a process: idle there is when none of them runs."
    view = Table("devices", "Devices (all steps)", _COLUMNS, tuple(several), note=note)
    return Report("devices", (table,), (view,) if several else ())


def _rows(trace: Trace) -> list[_Row]:
    work, events = device_work(trace), trace.events
    device = events.device[work.rows]
    computes = (events.category[work.rows] == Category.KERNEL) & ~is_communication(trace)
    window = spans(steps(trace).window[:, 0], steps(trace).window[:, 1])
    rows: list[_Row] = []
    for number in sorted_unique(device).tolist():
        mine = device == number
        busy, compute = (
            measure_common(spans(work.start[some], work.end[some]), window) for some in (mine, mine & computes)
        )
        total, idle = int((work.end - work.start)[mine].sum()), measure(window) - busy
        share = round(100 * busy / measure(window), 3) if len(window) else 0.0
        rows.append((trace.rank, number, int(mine.sum()), total, busy, compute, idle, share))
    return rows
