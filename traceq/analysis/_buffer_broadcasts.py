"""How long steps wait while DDP sends the model's buffers from rank 0, before each forward pass."""

from __future__ import annotations

import numpy as np

from traceq.analysis._basis import holds_in_steps, step_lengths
from traceq.analysis._wording import per_step
from traceq.facts.comm.collective_roles import Role, collective_roles
from traceq.facts.comm.collectives import collective_calls
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.intervals import Spans, measure_within, spans, subtract
from traceq.model import Category, Trace
from traceq.regexes import regex
from traceq.report import Finding
from traceq.units import Unit, format_value

__all__ = ["buffer_broadcast_spans", "buffer_broadcasts"]

_LEAST_PCT = 5.0
_FORWARD = regex(r"^DistributedDataParallel\.forward$")
_SENDS = regex(
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


def buffer_broadcasts(trace: Trace) -> Finding | None:
    """Return a finding where these broadcasts take 5 % of most steps, in which the device computes nothing."""
    sends = buffer_broadcast_spans(trace)
    all_steps = steps(trace)
    if not len(sends) or not all_steps.marked:
        return None
    window = all_steps.window[all_steps.counted]
    lost = measure_within(subtract(sends, activity(trace).when(TimeCategory.COMPUTE)), *window.T).astype(np.float64)
    if not holds_in_steps(lost, step_lengths(all_steps), _LEAST_PCT):
        return None
    share = format_value(100 * float(lost.sum()) / float(step_lengths(all_steps).sum()), Unit.PERCENT)
    text = (
        f"DDP sends the model's buffers before each forward pass, {format_value(lost.mean(), Unit.NS)} "
        f"{per_step(all_steps)} ({share}) in which nothing computes; with broadcast_buffers=False each rank keeps its "
        "own, as statistics of batch norm may be"
    )
    return Finding("buffer_broadcasts", "medium", text, round(float(lost.mean())))
