"""How long steps wait while DDP sends the model's buffers from rank 0, before each forward pass."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from traceq.analysis._basis import holds_in_steps, step_lengths
from traceq.analysis._wording import per_step
from traceq.facts.comm.collective_roles import Role, collective_roles
from traceq.facts.comm.collectives import collective_calls
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frozen import frozen
from traceq.intervals import Spans, measure_within, spans, subtract
from traceq.model import Category, Trace
from traceq.report import Finding, found
from traceq.units import Unit, format_value

__all__ = ["BufferBroadcasts", "buffer_broadcast_spans", "buffer_broadcasts", "least_of_job"]

_LEAST_PCT = 5.0
_FORWARD = re.compile(r"^DistributedDataParallel\.forward$")
_SENDS = re.compile(
    r"^(c10d::|nccl:|gloo:|record_param_comms$"
    r"|aten::(flatten_dense_tensors|unflatten_dense_tensors|cat|view|reshape|_reshape_alias|narrow|slice|as_strided|copy_"
    r"|empty|empty_like|empty_strided|detach|to|_to_copy|select)$)"
)
"""Ops with which buffers are put into one tensor, sent, and copied back."""


def buffer_broadcast_spans(trace: Trace) -> Spans:
    """Return the time from the begin of each forward pass of DDP that broadcasts buffers to its first other op."""
    events, calls, main = trace.events, collective_calls(trace), main_track(trace)
    sent = np.sort(events.ts[calls.rows[collective_roles(trace) == Role.BUFFERS]])
    marks = events.rows(Category.ANNOTATION)
    marks = marks[matching(events, marks, _FORWARD)]
    marks = marks[tracks(trace)[marks] == main]
    start, end = events.ts[marks], events.end[marks]
    last = np.searchsorted(sent, end) - 1
    has_sent = (last >= 0) & (np.r_[sent, 0][last] >= start)
    start, end, last = start[has_sent], end[has_sent], last[has_sent]
    ops = events.rows(Category.CPU_OP)
    ops = ops[(tracks(trace)[ops] == main) & ~matching(events, ops, _SENDS)] if len(start) else ops[:0]
    others = np.r_[np.sort(events.ts[ops]), np.iinfo(np.int64).max]
    return spans(start, np.minimum(others[np.searchsorted(others, sent[last])], end))


@frozen
class BufferBroadcasts:
    """Whether a rank broadcasts buffers, and the finding where that takes 5 % of most of its steps."""

    is_done: bool = False
    finding: Finding | None = None


def buffer_broadcasts(trace: Trace) -> BufferBroadcasts:
    """Return what these broadcasts take of steps, in which the device computes nothing."""
    sends = buffer_broadcast_spans(trace)
    all_steps = steps(trace)
    if not len(sends) or not all_steps.marked:
        return BufferBroadcasts()
    window = all_steps.window[all_steps.counted]
    lost = measure_within(subtract(sends, activity(trace).when(TimeCategory.COMPUTE)), *window.T).astype(np.float64)
    if not holds_in_steps(lost, step_lengths(all_steps), _LEAST_PCT):
        return BufferBroadcasts(is_done=True)
    share = format_value(100 * float(lost.sum()) / float(step_lengths(all_steps).sum()), Unit.PERCENT)
    text = (
        f"DDP sends the model's buffers before each forward pass, {format_value(lost.mean(), Unit.NS)} "
        f"{per_step(all_steps)} ({share}) in which nothing computes; with broadcast_buffers=False each rank keeps its "
        "own, as statistics of batch norm may be"
    )
    ns, lead = round(float(lost.mean())), "DDP sends buffers before each forward pass: try broadcast_buffers=False"
    return BufferBroadcasts(True, found("buffer_broadcasts", "medium", text, ns, lead=lead, gain=(0, ns)))


def least_of_job(job: Job, of_ranks: Sequence[BufferBroadcasts]) -> list[Finding | None]:
    """Return by rank the finding that counts: of all ranks of a job that of the rank with the least of this time.

    The others wait for that one beyond it, and would without these broadcasts.
    """
    findings = [each.finding for each in of_ranks]
    if not job.ranks or len(of_ranks) < job.ranks[0].world_size:
        return findings
    is_little = any(each.is_done and each.finding is None for each in of_ranks)
    least = None if is_little else min(filter(None, findings), key=lambda each: each.ns, default=None)
    return [each if each is least else None for each in findings]
