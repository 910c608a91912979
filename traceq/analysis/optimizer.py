"""How does the optimizer step, and what would fusing it save?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._basis import holds_in_steps, on_the_worst_rank, step_lengths, unprofiled_share
from traceq.analysis._rank_rows import Part, of_all
from traceq.claims.claim import AT_MOST, Claim, Subject, measured
from traceq.claims.limits import LARGE
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import COMPILED
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.events.self_time import self_times
from traceq.facts.memo import once_per_trace
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import OPTIMIZER_STEP, optimizer_steps, update_starts
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import IDLE, TimeCategory, activity, in_counted_steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import Spans, contains, measure_within, span_index, spans
from traceq.model import Category, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit

_PHASE = re.compile("optim", re.IGNORECASE)
_IMPLEMENTATIONS = (
    ("fused", re.compile(r"^aten::_fused_|fused_?(adam|sgd|adagrad|lamb)|multi_tensor_(adam|sgd|lamb)", re.IGNORECASE)),
    ("compiled", COMPILED),
    ("foreach", re.compile(r"^aten::_foreach_")),
)
_UNFUSED = ("foreach", "for-loop")
_CAN_FUSE = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers of torch that accept `fused=True`."""


@frozen
class OptimizerRow:
    """One optimizer, without a closure."""

    rank: int = column("rank", Unit.COUNT)
    name: str = column("optimizer")
    implementation: str = column("implementation")
    """`fused`, `compiled`, `foreach`, `for-loop`."""
    num: int = column("calls", Unit.COUNT)
    host_ns: int = column("host", Unit.NS)
    num_gpu_ops: int = column("GPU ops", Unit.COUNT)
    window_ns: int = column("of the steps", Unit.NS)
    """Its work, or only its host, runs in counted windows."""
    steps_ns: tuple[int, ...] = ()
    pass_ns: int = 0
    """At least as long one pass over all tensors takes in counted windows, which a fused optimizer makes, too."""


def summarize(trace: Trace) -> Part[OptimizerRow]:
    """Return a rank's optimizers by `Optimizer.step#*` ranges: fused, compiled, foreach or a loop over tensors."""
    return Part(_optimizers(trace), _unfused(trace))


def merge(job: Job, parts: Sequence[Part[OptimizerRow]]) -> Report:
    """Return the optimizers of all ranks, and the finding of the rank where fusing saves most."""
    table = Table.of("optimizers", "Optimizers", OptimizerRow, of_all(parts))
    findings = on_the_worst_rank(job, (part.finding for part in parts))
    share = unprofiled_share(job, _PHASE, 100 * LARGE) if findings else None
    if share is not None:
        # with the time of the optimizer's phase in unprofiled steps as well
        unprofiled = measured(unprofiled_ns=share.ns, unprofiled_pct=share.pct, num_unprofiled=share.num_steps)
        beside = (replace(claim, measures={**claim.measures, **unprofiled}) for claim in findings)
        findings = tuple(beside) if share.exceeds else ()
    return Report("optimizer", (table,), findings=findings)


@once_per_trace
def _optimizers(trace: Trace) -> tuple[OptimizerRow, ...]:
    events, rows = trace.events, optimizer_steps(trace)
    names, first = np.unique(events.name[rows], return_index=True)
    return tuple(_optimizer(trace, rows[events.name[rows] == name]) for name in names[np.argsort(first)].tolist())


def _optimizer(trace: Trace, rows: NDArray[np.int64]) -> OptimizerRow:
    events, work = trace.events, device_work(trace)
    track = int(tracks(trace)[rows[0]])
    starts = update_starts(trace, rows)
    inside = spans(starts, events.end[rows])
    launched = work.linked & (tracks(trace)[work.call] == track) & contains(inside, events.ts[work.call])
    ops = events.rows(Category.CPU_OP, Category.ANNOTATION)
    ops = ops[(tracks(trace)[ops] == track) & contains(inside, events.ts[ops])]
    ran = np.r_[np.setdiff1d(ops, rows, assume_unique=True), work.rows[launched]]
    steps_ns = _step_ns(trace, inside, launched)
    match = OPTIMIZER_STEP.match(events.text(int(rows[0])))
    name = match["name"] if match else ""
    return OptimizerRow(
        rank=trace.rank,
        name=name,
        implementation="fused" if name.startswith("Fused") else _implementation(trace, ran),
        num=len(rows),
        host_ns=int((events.end[rows] - starts).sum()),
        num_gpu_ops=int(launched.sum()),
        window_ns=sum(steps_ns),
        steps_ns=steps_ns,
        pass_ns=_pass_ns(trace, inside, track, launched),
    )


def _implementation(trace: Trace, ran: NDArray[np.int64]) -> str:
    """Return the implementation by the ops and kernels that ran."""
    kinds = [name for name, pattern in _IMPLEMENTATIONS if matching(trace.events, ran, pattern).any()]
    return kinds[0] if kinds else "for-loop" if len(ran) else "unknown"


def _pass_ns(trace: Trace, inside: Spans, track: int, launched: NDArray[np.bool_]) -> int:
    """Return how much the calls of one op or kernel, of that with most, take beyond its shortest call.

    Each kind goes over all tensors; the shortest call is about what any call costs.
    """
    work, ops, counted = device_work(trace), self_times(trace), steps(trace).window[steps(trace).counted]
    if len(work):
        rows, ns = work.rows[launched], (work.end - work.start)[launched]
    else:
        selected = (ops.track == track) & contains(inside, trace.events.ts[ops.rows])
        rows, ns = ops.rows[selected], ops.ns[selected]
    selected = contains(spans(*counted.T), trace.events.ts[rows])
    ns, kinds = ns[selected], group([trace.events.name[rows[selected]]])
    shortest = np.full(len(kinds.keys), np.iinfo(np.int64).max)
    np.minimum.at(shortest, kinds.group_ids, ns)
    return int(kinds.totals(ns - shortest[kinds.group_ids]).max(initial=0))


def _step_ns(trace: Trace, inside: Spans, launched: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return ns of each counted window in which the optimizer's work runs, or the host is in it and nothing runs."""
    pieces, counted = activity(trace), in_counted_steps(trace)
    idle = pieces.among(*(code for code in IDLE if code is not TimeCategory.LAUNCH_LATENCY)) | (pieces.owner < 0)
    of_work = launched[pieces.owner] if len(launched) else np.zeros(len(idle), np.bool_)
    ns = np.where(idle, measure_within(inside, pieces.parts[:, 0], pieces.parts[:, 1]), of_work * pieces.ns)
    step = span_index(steps(trace).window, pieces.parts[counted, 0])
    ns = np.bincount(step, weights=ns[counted], minlength=len(steps(trace)))[steps(trace).counted]
    return tuple(ns.astype(np.int64).tolist())


def _unfused(trace: Trace) -> Claim | None:
    """Return a claim if an optimizer that torch can fuse is not fused, and would save more than 10 % of the step."""
    steps_ns = step_lengths(steps(trace))
    unfused = [row for row in _optimizers(trace) if row.name in _CAN_FUSE and row.implementation in _UNFUSED]
    slowest = max(unfused, key=lambda row: row.window_ns - row.pass_ns, default=None)
    if not steps(trace).marked or slowest is None:
        return None
    saved_ns = slowest.window_ns - slowest.pass_ns
    if saved_ns <= LARGE * steps_ns.sum():
        return None
    if not holds_in_steps(np.array(slowest.steps_ns, np.float64), steps_ns, 100 * LARGE):
        return None
    step_ns = round(slowest.window_ns / len(steps_ns))
    measures = measured(
        optimizer=slowest.name,
        implementation=slowest.implementation,
        takes_ns=step_ns,
        share_pct=100 * slowest.window_ns / float(steps_ns.sum()),
    )
    remedy = "" if len(device_work(trace)) else "unfused_optimizer_on_cpu"
    gain = 0, round(saved_ns / len(steps_ns))
    return Claim("unfused_optimizer", step_ns, Subject(), measures, gain, AT_MOST, remedy)
