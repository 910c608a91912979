"""Which ops keep the host busy, and does autograd check each gradient for NaN?"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from traceq.analysis import sentences
from traceq.analysis._basis import on_the_worst_rank, step_lengths
from traceq.analysis._rank_rows import largest_sums, of_all
from traceq.analysis._wording import more_rows, over_ranks
from traceq.claims.claim import Claim, measured
from traceq.claims.limits import LARGE, MOST, NOTABLE
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import host_ops
from traceq.facts.events.self_time import self_times
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import measure_within, sorted_unique, spans
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.units import Unit

_TOP = 5
_NODE = re.compile(r"^autograd::engine::evaluate_function: (?!torch::autograd::AccumulateGrad)")
"""Nodes that make gradients for others."""
_IS_NAN, _CHECK = re.compile(r"^aten::isnan$"), re.compile(r"^aten::(isnan|_is_any_true|any|item|is_nonzero)$")
"""What autograd runs after a node in order to see whether its gradients are NaN."""


@frozen
class HostRow:
    """Self time of ops or runtime calls of one name in one phase."""

    rank: int = column("rank", Unit.COUNT)
    phase: str = column("phase")
    name: str = column("op or call")
    num: int = column("num", Unit.COUNT)
    self_ns: int = column("self time", Unit.NS)


@frozen
class _Sum:
    """Rows of one phase and name over all ranks; without a share, as claims have that of a step."""

    phase: str = column("phase")
    name: str = column("op or call")
    num: int = column("num", Unit.COUNT)
    self_ns: int = column("self time", Unit.NS)


@frozen
class _Rank:
    """One rank's rows, whether it is host-bound for long enough to show them, and that it detects anomalies."""

    rows: tuple[HostRow, ...]
    is_host_bound: bool
    finding: Claim | None


def summarize(trace: Trace) -> _Rank:
    """Return self time of ops and runtime calls by phase and name, over all threads and the whole trace."""
    return _Rank(tuple(_rows(trace)), _is_host_bound(trace), _anomaly_detection(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see sums over them."""
    rows = of_all(parts)
    view = (_view(job, rows),) if rows and any(part.is_host_bound for part in parts) else ()
    findings = on_the_worst_rank(job, (part.finding for part in parts))
    return Report("host", (Table.of("host", "Host", HostRow, rows),), view, findings)


def _rows(trace: Trace) -> list[HostRow]:
    """Return the rows of one rank, longest first."""
    times, events, labels = self_times(trace), trace.events, phases(trace)
    groups = group([labels.phase_at(times.track, events.ts[times.rows]), events.name[times.rows]])
    num, self_ns = groups.sum(times.is_call.astype(np.int64)), groups.sum(times.ns)
    rows = [
        HostRow(trace.rank, labels.names[phase], events.strings[name], *sums)
        for (phase, name), *sums in zip(groups.keys.tolist(), num, self_ns, strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.self_ns, row.phase, row.name))


def _is_host_bound(trace: Trace) -> bool:
    partition = activity(trace)
    bound_ns = int(partition.ns[partition.category == TimeCategory.HOST_BOUND].sum())
    return len(device_work(trace)) == 0 or bound_ns >= LARGE * int(partition.ns.sum())


def _anomaly_detection(trace: Trace) -> Claim | None:
    """Return a claim if most nodes of the backward pass check their gradients, for a notable part of most steps."""
    events, checks = trace.events, []
    num_nodes = num_checked = 0
    for ops in host_ops(trace).values():
        is_node = matching(events, ops.rows, _NODE)
        inside = np.flatnonzero((ops.parent >= 0) & is_node[ops.parent] & matching(events, ops.rows, _CHECK))
        checked = sorted_unique(ops.parent[inside[matching(events, ops.rows[inside], _IS_NAN)]])
        checks.append(ops.rows[inside[np.isin(ops.parent[inside], checked)]])
        num_nodes, num_checked = num_nodes + int(is_node.sum()), num_checked + len(checked)
    if num_checked < MOST * max(num_nodes, 1):
        return None
    rows, counted = np.concatenate(checks), steps(trace).window[steps(trace).counted]
    ns, step_ns = measure_within(spans(events.ts[rows], events.end[rows]), *counted.T), step_lengths(steps(trace))
    if not steps(trace).marked or np.median(ns / step_ns) < NOTABLE:
        return None
    checks_ns = round(float(ns.mean()))
    measures = measured(time_ns=checks_ns, share_pct=100 * float(ns.sum()) / float(step_ns.sum()))
    return Claim("anomaly_detection", checks_ns, measures=measures)


def _view(job: Job, rows: Sequence[HostRow]) -> Table:
    """Return the longest self times, summed over ranks."""
    longest = largest_sums(rows, lambda row: (row.phase, row.name), lambda row: (row.num, row.self_ns))
    shown = [_Sum(*identity, num, ns) for identity, (num, ns) in longest[:_TOP]]
    title = sentences.HOST.format(of=over_ranks(job))
    return Table.of("host", title, _Sum, shown, note=more_rows(len(longest) - _TOP))
