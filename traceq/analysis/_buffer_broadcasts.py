"""How long steps wait while DDP sends the model's buffers from rank 0, before each forward pass."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from traceq.analysis._basis import holds_in_steps, step_lengths
from traceq.claims.claim import AT_MOST, Claim, measured
from traceq.claims.limits import MODERATE
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

__all__ = ["BufferBroadcasts", "buffer_broadcast_spans", "buffer_broadcasts", "least_of_job"]

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
    """Whether a rank broadcasts buffers, and the claim where that takes much of most of its steps."""

    is_done: bool = False
    finding: Claim | None = None


def buffer_broadcasts(trace: Trace) -> BufferBroadcasts:
    """Return what these broadcasts take of steps, in which the device computes nothing."""
    sends = buffer_broadcast_spans(trace)
    all_steps = steps(trace)
    if not len(sends) or not all_steps.marked:
        return BufferBroadcasts()
    window = all_steps.window[all_steps.counted]
    lost = measure_within(subtract(sends, activity(trace).when(TimeCategory.COMPUTE)), *window.T).astype(np.float64)
    if not holds_in_steps(lost, step_lengths(all_steps), 100 * MODERATE):
        return BufferBroadcasts(is_done=True)
    ns, step_ns = round(float(lost.mean())), float(step_lengths(all_steps).mean())
    measures = measured(idle_ns=ns, share_pct=100 * ns / step_ns)
    return BufferBroadcasts(True, Claim("buffer_broadcasts", ns, measures=measures, gain=(0, ns), gain_by=AT_MOST))


def least_of_job(job: Job, of_ranks: Sequence[BufferBroadcasts]) -> list[Claim | None]:
    """Return by rank the finding that counts: of all ranks of a job that of the rank with the least of this time.

    The others wait for that one beyond it, and would without these broadcasts.
    """
    findings = [each.finding for each in of_ranks]
    if not job.ranks or len(of_ranks) < job.ranks[0].world_size:
        return findings
    is_little = any(each.is_done and each.finding is None for each in of_ranks)
    least = None if is_little else min(filter(None, findings), key=lambda each: each.ns, default=None)
    return [each if each is least else None for each in findings]
