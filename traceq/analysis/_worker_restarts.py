"""How long steps wait because a loader's workers are started anew for each epoch."""

from __future__ import annotations

import numpy as np

from traceq.analysis._wording import in_traced_steps, per_step
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.data_loading import loader_iterations
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import Spans, measure_common, spans
from traceq.model import Trace
from traceq.report import Finding, found
from traceq.units import Unit, format_value

__all__ = ["Restarts", "restart_finding", "worker_restarts"]

_LEAST_PCT = 5.0
_INSTEAD_OF = ("starved", "dataload_wait", "host_bound")
_TIMES = {1: "once", 2: "twice"}


@frozen
class Restarts:
    """Starts of workers that follow other batches, in the counted steps of a rank.

    `idle_ns` in all of them together, in which nothing runs because of the loader, of `window_ns` in `num_steps`.
    """

    num: int
    idle_ns: int
    window_ns: int
    num_steps: int


def worker_restarts(trace: Trace, idle: Spans) -> Restarts:
    """Return the restarts of a trace; `idle`: the time in which nothing runs because of the loader."""
    begins, counted = loader_iterations(trace), steps(trace).window[steps(trace).counted]
    again = begins.whole[begins.is_again & begins.starts_workers]
    within = (again[:, :1] < counted[:, 1]) & (again[:, 1:] > counted[:, 0])
    in_steps = again[within.any(axis=1)]
    overlap = measure_common(spans(*in_steps.T), idle)
    return Restarts(len(in_steps), overlap, int(np.diff(counted).sum()), len(counted))


def restart_finding(job: Job, restarts: Restarts) -> Finding | None:
    """Return a finding where restarts take 5 % of a rank's steps; how often they recur one alone does not say."""
    if not restarts.num or 100 * restarts.idle_ns < _LEAST_PCT * restarts.window_ns:
        return None
    step_ns = round(restarts.idle_ns / restarts.num_steps)
    share = format_value(100 * restarts.idle_ns / restarts.window_ns, Unit.PERCENT)
    often = _TIMES.get(restarts.num, f"{restarts.num:,} times")
    text = (
        f"worker restarts, {format_value(step_ns, Unit.NS)} {per_step(job.ranks[0].steps)} ({share}) "
        f"{in_traced_steps(job, restarts.num_steps)}: {often} the loop begins to iterate its data loader anew, as for "
        "each epoch, which starts new workers and waits for a first batch; persistent_workers=True keeps the workers"
    )
    severity = "high" if restarts.num > 1 else "medium"
    lead = "the loader starts new workers for each epoch: persistent_workers=True keeps them"
    evidence = f"{often} in these steps"
    return found(
        "worker_restarts",
        severity,
        text,
        step_ns,
        lead=lead,
        evidence=evidence,
        gain=(0, step_ns),
    )
