"""Do the ranks exchange metrics in every step?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._basis import on_the_worst_rank, recurs, step_lengths
from traceq.analysis._rank_rows import Part, of_all
from traceq.claims.claim import AT_MOST, Claim, measured
from traceq.claims.limits import NOTABLE
from traceq.facts.comm.collective_roles import Role, collective_roles
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, collective_calls, exposed_by_step, exposed_pct
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import sorted_unique, span_index
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.units import Unit


@frozen
class MetricRow:
    """Collectives of one kind that carry metrics, in counted steps."""

    rank: int = column("rank", Unit.COUNT)
    name: str = column("collective")
    num: int = column("num", Unit.COUNT)
    num_steps: int = column("steps with one", Unit.COUNT)
    exposed_ns: int = column("exposed", Unit.NS)


def summarize(trace: Trace) -> Part[MetricRow]:
    """Return the collectives that carry metrics in the counted steps, and their exposed time."""
    calls, step = _metric_calls(trace)
    return Part(tuple(_rows(trace, calls, step)), _in_every_step(trace, calls, step))


def merge(job: Job, parts: Sequence[Part[MetricRow]]) -> Report:
    """Return the rows of all ranks, and the finding of the rank that loses most time."""
    findings = on_the_worst_rank(job, (part.finding for part in parts))
    table = Table.of("metric_gathers", "Metrics", MetricRow, of_all(parts))
    return Report("metric_gathers", (table,), findings=findings)


def _metric_calls(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (index into Calls of each collective that carries metrics in the counted steps, its step)."""
    calls, host = collective_calls(trace), steps(trace).host
    step = span_index(host, trace.events.ts[calls.issued])
    metrics = np.flatnonzero((collective_roles(trace) == Role.METRIC) & (step >= 0) & steps(trace).counted[step])
    return metrics, step[metrics]


def _rows(trace: Trace, metrics: NDArray[np.int64], step: NDArray[np.int64]) -> list[MetricRow]:
    names = collective_calls(trace).name[metrics]
    return [
        MetricRow(
            rank=trace.rank,
            name=COLLECTIVE_NAMES[name],
            num=int(selected.sum()),
            num_steps=len(sorted_unique(step[selected])),
            exposed_ns=int(exposed_by_step(trace, metrics[selected]).sum()),
        )
        for name in sorted_unique(names).tolist()
        for selected in (names == name,)
    ]


def _in_every_step(trace: Trace, metrics: NDArray[np.int64], step: NDArray[np.int64]) -> Claim | None:
    """Return a claim if each of two or more steps has such collectives, exposed for a notable part of most of them."""
    by_step, step_ns = exposed_by_step(trace, metrics), step_lengths(steps(trace))
    num_steps, exposed_ns = len(step_ns), round(float(by_step.mean()))
    if num_steps < 2 or len(sorted_unique(step)) < num_steps or exposed_ns < NOTABLE * float(step_ns.mean()):
        return None
    if not recurs(by_step.tolist(), step_ns, 100 * NOTABLE):
        return None
    measures = measured(
        calls_mean=len(metrics) / num_steps, exposed_ns=exposed_ns, exposed_pct=exposed_pct(trace, by_step)
    )
    return Claim("metric_gathers", exposed_ns, measures=measures, gain=(0, exposed_ns), gain_by=AT_MOST)
