"""Lines of Python that run hundreds of small ops in every step, as loops over tensors do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._basis import holds_in_steps
from traceq.analysis._wording import per_step
from traceq.facts.events.device_work import device_work
from traceq.facts.timeline.line_parts import line_parts
from traceq.facts.timeline.main_lines import main_lines
from traceq.facts.timeline.optimizer_updates import updates
from traceq.facts.timeline.steps import steps
from traceq.intervals import contains, span_index
from traceq.model import Trace
from traceq.report import Finding, found
from traceq.units import Unit, format_value

__all__ = ["small_ops"]

_MANY = 200
"""Ops per step of one line: more than the layers of most models, which are loops as well, but need to be."""
_LONGEST_NS = 50_000
"""A longer op computes more than it costs to call it."""
_ENGINE = "autograd::engine"
_LEAST_PCT, _MUCH_PCT = 5.0, 20.0


def small_ops(trace: Trace) -> Finding | None:
    """Return a finding on the function whose lines run most time in many small ops, with what these have in backward.

    Only without a device: there the host's time is the step's. What optimizers do in a loop is a finding of its own.
    """
    parts, all_steps = line_parts(trace), steps(trace)
    if len(device_work(trace)) or not len(parts.ns):
        return None
    counted, texts = all_steps.host[all_steps.counted], main_lines(trace).texts
    counts = (parts.op >= 0) & (parts.line > 0) & ~contains(updates(trace), parts.start)
    is_forward = counts & ~parts.is_backward
    num_ops = np.bincount(parts.line[is_forward & parts.begins_op], minlength=len(texts)) / len(counted)
    op_ns = np.bincount(parts.line[is_forward], parts.ns[is_forward], len(texts)) / len(counted)
    is_loop = (num_ops >= _MANY) & (op_ns <= _LONGEST_NS * num_ops) & ~_runs_backward(trace)
    selected = np.flatnonzero(is_loop)
    if not len(selected):
        return None
    all_ns = np.bincount(parts.line[counts], parts.ns[counts], len(texts)) / len(counted)
    places = _lines_of_the_longest_function(texts, selected, all_ns)
    inside = counts & np.isin(parts.line, places)
    by_step = np.bincount(span_index(counted, parts.start[inside]), parts.ns[inside], len(counted)).astype(np.float64)
    step_ns = np.diff(counted)[:, 0].astype(np.float64)
    if not holds_in_steps(by_step, step_ns, _LEAST_PCT):
        return None
    num, ns = float(num_ops[places].sum()), round(float(by_step.mean()))
    pct, forward_ns = 100 * ns / float(step_ns.mean()), float(op_ns[places].sum())
    backward_ns = ns - forward_ns
    passes = f" (their backward is {format_value(backward_ns, Unit.NS)} of it)" if backward_ns >= ns / 100 else ""
    text = (
        f"small ops: {_names(texts, places)} runs {format_value(num, Unit.MEAN)} ops {per_step(all_steps)}, "
        f"{format_value(forward_ns / num, Unit.NS)} each, and takes {format_value(ns, Unit.NS)} "
        f"({format_value(pct, Unit.PERCENT)}){passes}: replace its loop by one op on stacked tensors, or compile it"
    )
    lead = f"small ops at {_names(texts, places)}: use one op on stacked tensors, or compile it"
    evidence = (
        f"{format_value(num, Unit.MEAN)} ops {per_step(all_steps)}, {format_value(forward_ns / num, Unit.NS)} each"
    )
    severity = "high" if pct >= _MUCH_PCT else "medium"
    return found("small_ops", severity, text, ns, lead=lead, evidence=evidence, gain=(0, ns))


def _runs_backward(trace: Trace) -> NDArray[np.bool_]:
    """Return which lines start a backward pass: bool[texts]; what differentiates no op of a line is theirs."""
    parts, strings = line_parts(trace), trace.events.strings
    is_engine = np.array([*(name.startswith(_ENGINE) for name in strings), False])[parts.op]
    starts = np.zeros(len(main_lines(trace).texts), np.bool_)
    starts[parts.line[is_engine & ~parts.is_backward]] = True
    return starts


def _lines_of_the_longest_function(
    texts: Sequence[str], selected: NDArray[np.int64], ns: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the selected lines of the function whose selected lines take the most time, in their order."""
    by_function: dict[tuple[str, str], list[int]] = {}
    for line in selected.tolist():
        file, _, function = _place(texts[line])
        by_function.setdefault((file, function), []).append(line)
    longest = max(by_function.values(), key=lambda lines: float(ns[lines].sum()))
    return np.array(sorted(longest, key=lambda line: _place(texts[line])[1]), np.int64)


def _names(texts: Sequence[str], lines: NDArray[np.int64]) -> str:
    """Return `loss.py:20-21 separation`: the first and the last line of one function."""
    (file, first, function), (_, last, _) = _place(texts[lines[0]]), _place(texts[lines[-1]])
    return texts[lines[0]] if first == last else f"{file}:{first}-{last} {function}"


def _place(text: str) -> tuple[str, int, str]:
    """Return (file, line, function) of `loss.py:20 separation`."""
    file, _, place = text.rpartition(":")
    line, _, function = place.partition(" ")
    return (file, int(line), function) if line.isdecimal() else (text, 0, "")
