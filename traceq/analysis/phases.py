"""Where does the time go, by phase of the step?"""

from __future__ import annotations

from collections.abc import Sequence

from traceq.analysis import sentences
from traceq.analysis._rank_rows import of_all, summed
from traceq.analysis._wording import over_ranks
from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import BEFORE_WINDOW, UNATTRIBUTED, phases
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import measure, measure_common, spans
from traceq.model import Category, Trace
from traceq.report import Column, Report, Table, column
from traceq.units import Unit


@frozen
class PhaseRow:
    """Host and device time of one phase."""

    rank: int = column("rank", Unit.COUNT, is_hidden=True)
    name: str = column("phase")
    """The phase; traceq adds `before_window`, `unattributed` and `other`."""
    rule: str = column("rule", is_hidden=True)
    """What defines phases: `recorded`, `inference`, `passes`, `annotations`, `structure`."""
    cpu_ns: int = column("host", Unit.NS)
    gpu_busy_ns: int = column("GPU busy", Unit.NS)
    gpu_sum_ns: int = column("GPU sum", Unit.NS)
    num_kernels: int = column("kernels", Unit.COUNT)
    num_gpu_ops: int = column("GPU ops", Unit.COUNT)
    """With copies and memsets."""


@frozen
class _Rank:
    """One rank's rows, and its phases in the main thread's order."""

    rows: tuple[PhaseRow, ...]
    in_order: tuple[str, ...]


def summarize(trace: Trace) -> _Rank:
    """Return host and device time of each phase over the trace; before_window and unattributed are always listed."""
    return _Rank(tuple(_rows(trace)), phases(trace).in_order)


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see sums over them."""
    rows = of_all(parts)
    order = tuple(dict.fromkeys(name for part in parts for name in part.in_order))
    views = (_view(job, rows, order),) if rows else ()
    return Report("phases", (Table.of("phases", "Phases", PhaseRow, rows),), views)


def _rows(trace: Trace) -> list[PhaseRow]:
    labels, work = phases(trace), device_work(trace)
    is_kernel = trace.events.category[work.rows] == Category.KERNEL
    host = steps(trace).host
    in_steps = spans(host[:, 0], host[:, 1])
    rows = []
    for number, name in enumerate(labels.names):
        selected = labels.work_phase == number
        cpu_ns = measure_common(labels.main.parts[labels.main.label == number], in_steps)
        if number == labels.other:
            cpu_ns = measure(in_steps) - measure_common(labels.main.parts, in_steps)
        if selected.any() or cpu_ns or name in (BEFORE_WINDOW, UNATTRIBUTED):
            row = PhaseRow(
                rank=trace.rank,
                name=name,
                rule=labels.rule,
                cpu_ns=cpu_ns,
                gpu_busy_ns=measure(spans(work.start[selected], work.end[selected])),
                gpu_sum_ns=int((work.end - work.start)[selected].sum()),
                num_kernels=int(is_kernel[selected].sum()),
                num_gpu_ops=int(selected.sum()),
            )
            rows.append(row)
    return rows


def _view(job: Job, rows: Sequence[PhaseRow], order: Sequence[str]) -> Table:
    """Return sums over ranks of the phases that have any time or work."""
    by_name: dict[str, list[PhaseRow]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    columns = ("cpu_ns", "gpu_busy_ns", "gpu_sum_ns", "num_kernels", "num_gpu_ops")
    sums = [summed(by_name[name], *columns) for name in order if name in by_name]
    shown = [row for row in sums if row.cpu_ns or row.num_gpu_ops]
    title, note = f"Phases ({over_ranks(job)})", sentences.PHASES[rows[0].rule]
    view = Table.of("phases", title, PhaseRow, shown, note=note).visible
    if not any(rank.has_device for rank in job.ranks):
        return view.select("name", "cpu_ns")
    num_steps = sum(len(rank.steps) for rank in job.ranks)
    if num_steps == 1:
        return view
    busy_per_step = Column("step_ns", "GPU busy", Unit.NS, is_per_step=True)
    return view.with_column(busy_per_step, (row.gpu_busy_ns / num_steps for row in shown))
