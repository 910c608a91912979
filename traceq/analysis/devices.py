"""How busy is each device, where one process drives several?"""

from __future__ import annotations

from collections.abc import Sequence

from traceq.analysis._rank_rows import Part, of_all
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import is_communication
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import measure, measure_common, sorted_unique, spans
from traceq.model import Category, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit


@frozen
class DeviceRow:
    """Work of one device: its number and sum; busy, compute and idle time over all windows."""

    rank: int = column("rank", Unit.COUNT)
    device: int = column("device", Unit.COUNT)
    num_gpu_ops: int = column("GPU ops", Unit.COUNT)
    sum_ns: int = column("GPU sum", Unit.NS)
    busy_ns: int = column("busy", Unit.NS)
    compute_ns: int = column("compute", Unit.NS)
    """A kernel other than a collective runs."""
    idle_ns: int = column("idle", Unit.NS)
    busy_pct: float = column("busy", Unit.PERCENT)


def summarize(trace: Trace) -> Part[DeviceRow]:
    """Return the work of each device."""
    return Part(tuple(_rows(trace)))


def merge(job: Job, parts: Sequence[Part[DeviceRow]]) -> Report:
    """Return the rows of all ranks; people see those of processes with several devices."""
    table = Table.of("devices", "Devices", DeviceRow, of_all(parts))
    several = [row for part in parts if len(part.rows) > 1 for row in part.rows]
    view = Table.of("devices", "Devices (all steps)", DeviceRow, several)
    return Report("devices", (table,), (view,) if several else ())


def _rows(trace: Trace) -> list[DeviceRow]:
    work, events = device_work(trace), trace.events
    device = events.device[work.rows]
    computes = (events.category[work.rows] == Category.KERNEL) & ~is_communication(trace)
    window = spans(steps(trace).window[:, 0], steps(trace).window[:, 1])
    window_ns = measure(window)
    rows = []
    for number in sorted_unique(device).tolist():
        selected = device == number
        busy_ns, compute_ns = (
            measure_common(spans(work.start[mask], work.end[mask]), window) for mask in (selected, selected & computes)
        )
        rows.append(
            DeviceRow(
                rank=trace.rank,
                device=number,
                num_gpu_ops=int(selected.sum()),
                sum_ns=int((work.end - work.start)[selected].sum()),
                busy_ns=busy_ns,
                compute_ns=compute_ns,
                idle_ns=window_ns - busy_ns,
                busy_pct=round(100 * busy_ns / window_ns, 3) if len(window) else 0.0,
            )
        )
    return rows
