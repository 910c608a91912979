"""Do the ranks exchange metrics in every step?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._parts import Part, of_all
from traceq.analysis._worst_rank import on_the_worst_rank
from traceq.facts.comm.collective_roles import Role, collective_roles
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, collective_calls, collective_kernels
from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.grouping import group
from traceq.intervals import contains, sorted_unique, span_index, spans
from traceq.model import Trace
from traceq.report import Column, Finding, Report, Table
from traceq.units import Unit, format_value

POSITION = 54

_TELLING = 0.01
_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("name", "collective"),
    Column("num", "num", Unit.COUNT),
    Column("num_steps", "steps with one", Unit.COUNT),
    Column("exposed_ns", "exposed", Unit.NS),
)

_Row = tuple[int, str, int, int, int]


def summarize(trace: Trace) -> Part[_Row]:
    """Collectives that carry metrics, in the counted steps: how many, in how many of the steps, how long exposed."""
    return Part(tuple(_rows(trace)), _in_every_step(trace))


def merge(job: Job, parts: Sequence[Part[_Row]]) -> Report:
    """The rows of all ranks, and the rank that they cost most."""
    found = on_the_worst_rank(job, (part.finding for part in parts))
    table = Table("metric_gathers", "Metrics", _COLUMNS, of_all(parts))
    return Report("metric_gathers", (table,), findings=found)


def _metrics(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(index into Calls of each metric's collective of the counted steps, the step that issued it)."""
    calls, host = collective_calls(trace), steps(trace).host
    step = span_index(host, trace.events.ts[calls.issued])
    mine = np.flatnonzero((collective_roles(trace) == Role.METRIC) & (step >= 0) & steps(trace).counted[step])
    return mine, step[mine]


def _rows(trace: Trace) -> list[_Row]:
    mine, step = _metrics(trace)
    names = group([collective_calls(trace).name[mine]])
    return [
        (trace.rank, COLLECTIVE_NAMES[name], num, len(sorted_unique(step[own])), _exposed_ns(trace, mine[own]))
        for at, ((name,), num) in enumerate(zip(names.keys.tolist(), names.count(), strict=True))
        for own in (names.of_row == at,)
    ]


def _exposed_ns(trace: Trace, mine: NDArray[np.int64]) -> int:
    """Time of the counted windows in which only these collectives run."""
    done, calls = activity(trace), collective_calls(trace)
    exposed = done.among(TimeCategory.EXPOSED_COMM) & in_counted_steps(trace)
    if len(device_work(trace)):
        kernels = collective_kernels(trace)
        exposed &= np.isin(done.owner, kernels.work[np.isin(kernels.call, mine)])
    else:
        rows = calls.rows[mine]
        exposed &= contains(spans(trace.events.ts[rows], trace.events.end[rows]), done.parts[:, 0])
    return int(done.ns[exposed].sum())


def _in_every_step(trace: Trace) -> Finding | None:
    """Metrics are exchanged in each of two steps or more, and 1 % of the step waits for that."""
    (mine, step), known = _metrics(trace), steps(trace)
    num_steps, window = int(known.counted.sum()), known.window[known.counted]
    each_ns = round(_exposed_ns(trace, mine) / num_steps)
    if num_steps < 2 or len(sorted_unique(step)) < num_steps or each_ns < _TELLING * float(np.diff(window).mean()):
        return None
    text = (
        f"metrics are exchanged in every step, {format_value(len(mine) / num_steps, Unit.MEAN)} collectives, "
        f"{format_value(each_ns, Unit.NS)} of it exposed: gather them every n-th step"
    )
    return Finding("metric_gathers", "medium", text, each_ns)
