"""Which rank computes more for its experts than the others, and do they wait for it?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceq.analysis._rank_rows import Part, of_all
from traceq.analysis._slack import waits_by_rank
from traceq.analysis._wording import MOST_RANKS, in_traced_steps, more_rows, per_step, with_step_headings
from traceq.facts.events.communication_kernels import is_communication
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.steps import steps
from traceq.intervals import measure, measure_common, spans
from traceq.model import Trace
from traceq.report import Finding, Report, Table, column
from traceq.units import Unit, format_value

POSITION = 52

_EXPERTS = re.compile(
    r"group(ed)?_?(gemm|mm)|GroupProblemShape|m_grouped_|MoeFCGemm|moe_?gemm|fused_moe|_matmul_ogs|ragged_dot",
    re.IGNORECASE,
)
"""Kernels that multiply for several experts at once."""

_LEAST_RATIO, _LEAST_SHARE, _LEAST_EXPLAINED = 1.1, 0.02, 0.5
"""Busiest rank over the mean, its excess in parts of a step, and the part of the excess that others wait for."""


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """Expert compute of one rank, of a counted step: `ns` while such kernels run, `ratio` to the mean of all ranks.

    `wait_ns`: this rank waits in collectives for the last to arrive; None where that is not known.
    """

    rank: int = column("rank", Unit.COUNT)
    num: int = column("kernels", Unit.COUNT)
    ns: int = column("expert compute", Unit.NS)
    ratio: float = column("of the mean", Unit.MEAN)
    wait_ns: int | None = column("waits", Unit.NS)


def summarize(trace: Trace) -> Part[ExpertRow]:
    """Return the rank's expert compute in its counted steps; no row for a model without experts."""
    work, all_steps = device_work(trace), steps(trace)
    selected = matching(trace.events, work.rows, _EXPERTS) & ~is_communication(trace)
    start, end = work.start[selected], work.end[selected]
    windows = spans(*all_steps.window[all_steps.counted].T)
    inside = np.searchsorted(windows[:, 0], start, "right") > np.searchsorted(windows[:, 1], start, "right")
    num_steps = max(int(all_steps.counted.sum()), 1)
    ns = round(measure_common(spans(start, end), windows) / num_steps)
    return Part((ExpertRow(trace.rank, int(inside.sum()), ns, 1.0, None),) if inside.any() else ())


def merge(job: Job, parts: Sequence[Part[ExpertRow]]) -> Report:
    """Return a row per rank; people see it, and a finding, where ranks differ."""
    rows = list(of_all(parts))
    mean = float(np.mean([row.ns for row in rows])) if rows else 0.0
    waits = {rank: round(ns) for rank, ns in waits_by_rank(job).items()}
    rows = [replace(row, ratio=row.ns / mean if mean else 1.0, wait_ns=waits.get(row.rank)) for row in rows]
    table = Table.of("experts", "Expert compute", ExpertRow, rows)
    if len(rows) < 2 or max(row.ratio for row in rows) < _LEAST_RATIO:
        return Report("experts", (table,))
    busiest = sorted(rows, key=lambda row: (-row.ns, row.rank))[:MOST_RANKS]
    note = more_rows(len(rows) - len(busiest))
    view = Table.of("experts", "Expert compute of a step by rank", ExpertRow, busiest, note=note)
    return Report("experts", (table,), (with_step_headings(view, job),), _findings(job, rows, mean))


def _findings(job: Job, rows: Sequence[ExpertRow], mean: float) -> tuple[Finding, ...]:
    """Return the rank with most expert compute if the others wait for about as long as it computes more."""
    busiest = max(rows, key=lambda row: (row.ns, -row.rank))
    others = [row.wait_ns for row in rows if row.rank != busiest.rank and row.wait_ns is not None]
    steps_of = next(rank.steps for rank in job.ranks if rank.rank == busiest.rank)
    step_ns = measure(spans(*steps_of.window[steps_of.counted].T)) / max(int(steps_of.counted.sum()), 1)
    excess = busiest.ns - mean
    waited = float(np.median(others)) if others else 0.0
    busiest_wait = busiest.wait_ns or 0
    if excess < _LEAST_SHARE * step_ns or waited - busiest_wait < _LEAST_EXPLAINED * excess:
        return ()
    times = f"{format_value(excess, Unit.NS)} {per_step(steps_of)} more than the mean ({busiest.ratio:.2f}x)"
    waits = f"{format_value(waited, Unit.NS)} in collectives (it waits {format_value(busiest_wait, Unit.NS)})"
    text = (
        f"expert compute is uneven: rank {busiest.rank} has {times}, and the others wait {waits}, "
        f"{in_traced_steps(job)}: balance the tokens of experts, or place experts otherwise"
    )
    return (Finding("expert_imbalance", "medium", text, round(excess), f"rank {busiest.rank}"),)
