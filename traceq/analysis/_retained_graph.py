"""Backward ops that several steps run: of a graph that earlier code built, which `retain_graph=True` keeps."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._basis import holds_in_steps
from traceq.analysis._wording import per_step
from traceq.facts.events.device_work import device_work
from traceq.facts.events.forward_ops import forward_op, is_backward
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.timeline.steps import steps
from traceq.grouping import group
from traceq.intervals import contains, sorted_unique, span_index, spans
from traceq.model import Trace
from traceq.report import Finding, found
from traceq.units import Unit, format_value

__all__ = ["retained_graph"]

_ENGINE = "autograd::engine::evaluate_function: "
_NODE = re.compile(f"^{_ENGINE}")
_LEAST_PCT, _MUCH_PCT = 5.0, 20.0
_MOST_NAMES = 3


def retained_graph(trace: Trace) -> Finding | None:
    """Return a finding on nodes of autograd, known by thread and sequence number, that run in more than one step.

    Their time is that of the device, where there is one. Nodes that accumulate gradients have no number.
    """
    events, all_steps, has_device = trace.events, steps(trace), len(device_work(trace)) > 0
    counted = all_steps.host[all_steps.counted]
    if len(counted) < 2:
        return None
    rows = np.flatnonzero(is_backward(trace))
    rows = rows[contains(spans(*counted.T), events.ts[rows])]
    rows = rows[matching(events, rows, _NODE)]
    step, forward = span_index(counted, events.ts[rows]), forward_op(trace)[rows]
    is_older = (forward < 0) | (events.ts[forward] < counted[step, 0])
    rows, step = rows[is_older], step[is_older]
    node = group([events.forward_thread[rows], events.sequence[rows]]).group_ids
    of_steps = group([node, step])
    recurs = np.bincount(of_steps.keys[:, 0], minlength=len(rows) + 1) > 1
    rows, step = rows[recurs[node]], step[recurs[node]]
    ns = _device_ns(trace, rows) if has_device else events.end[rows] - events.ts[rows]
    by_step = np.bincount(step, ns, len(counted)).astype(np.float64)
    step_ns = np.diff(all_steps.window[all_steps.counted])[:, 0].astype(np.float64)
    if not len(rows) or not holds_in_steps(by_step, step_ns, _LEAST_PCT):
        return None
    of_names = group([events.name[rows]])
    longest = np.argsort(-np.array(of_names.sum(ns), np.int64), kind="stable")[:_MOST_NAMES]
    names = [events.strings[of_names.keys[index, 0]].removeprefix(_ENGINE) for index in longest]
    mean_ns, pct = round(float(by_step.mean())), 100 * float(by_step.mean()) / float(step_ns.mean())
    num, time = format_value(len(rows) / len(counted), Unit.MEAN), format_value(mean_ns, Unit.NS)
    time += " of the device" * has_device
    text = (
        f"retained graph: the backward pass runs {num} ops {per_step(all_steps)}, {time} "
        f"({format_value(pct, Unit.PERCENT)}), that it also runs in other steps, most of that {', '.join(names)}: "
        "retain_graph=True keeps the graph of earlier code, such as a set-up or another step; compute it under "
        "torch.no_grad(), or detach its result"
    )
    lead = "retained graph: compute the earlier part under torch.no_grad(), or detach its result"
    evidence = f"the backward pass runs {num} ops {per_step(all_steps)} that it also runs in other steps"
    severity = "high" if pct >= _MUCH_PCT else "medium"
    return found("retained_graph", severity, text, mean_ns, lead=lead, evidence=evidence, gain=(0, mean_ns))


def _device_ns(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[R]: time of the device work that each node launches."""
    events, work = trace.events, device_work(trace)
    ns = np.zeros(len(rows), np.int64)
    linked = np.flatnonzero(work.linked)
    of_rows, of_calls = tracks(trace)[rows], tracks(trace)[work.call[linked]]
    for track in sorted_unique(of_rows).tolist():
        on_track = np.flatnonzero(of_rows == track)
        on_track = on_track[np.argsort(events.ts[rows[on_track]], kind="stable")]
        launched = linked[of_calls == track]
        nodes = np.column_stack([events.ts[rows[on_track]], events.end[rows[on_track]]])
        node = span_index(nodes, events.ts[work.call[launched]])
        np.add.at(ns, on_track[node[node >= 0]], (work.end - work.start)[launched[node >= 0]])
    return ns
