"""Steps that capture CUDA graphs for most of their time, in which the device does little."""

from __future__ import annotations

import numpy as np

from traceq.analysis._basis import holds_in_steps
from traceq.analysis._wording import per_step
from traceq.facts.events.graph_replays import capture_spans
from traceq.facts.stalls.graph_capture_times import capturing_ns
from traceq.facts.stalls.one_time_syncs import captured_words, num_captured_graphs
from traceq.facts.timeline.steps import steps
from traceq.intervals import measure_within, spans
from traceq.model import Trace
from traceq.report import Finding
from traceq.units import Unit, format_value

__all__ = ["capture_finding"]

_MOST_PCT = 50.0
"""Percentage of the step from which captures are what it does."""


def capture_finding(trace: Trace) -> Finding | None:
    """Return that the host captures graphs for most of the steps, where that is not what the device waits for.

    What is launched then runs when the graph is replayed, and where nothing follows it in the step, no work waits.
    """
    all_steps = steps(trace)
    counted = all_steps.host[all_steps.counted]
    by_step = measure_within(spans(*capture_spans(trace).T), counted[:, 0], counted[:, 1]).astype(np.float64)
    step_ns = np.diff(counted)[:, 0].astype(np.float64)
    if not holds_in_steps(by_step, step_ns, _MOST_PCT) or 2 * capturing_ns(trace) >= by_step.mean():
        return None
    ns, share = float(by_step.mean()), format_value(100 * float(by_step.sum() / step_ns.sum()), Unit.PERCENT)
    text = (
        f"the host captures {captured_words(num_captured_graphs(trace))} for {format_value(ns, Unit.NS)} "
        f"{per_step(all_steps)} ({share}), once: what is launched into a graph does not run then; trace later steps"
    )
    lead = f"the steps capture {captured_words(num_captured_graphs(trace))}, once: trace later steps"
    return Finding("graph_capture", "medium", text, round(ns), lead=lead)
