"""Where the host is while the device waits for it, or without a device between ops: the largest causes, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from traceq.analysis._wording import in_phase, python_place
from traceq.facts.events.device_work import device_work
from traceq.facts.stalls.idle_time import IdleCause, idleness
from traceq.facts.timeline.data_loading import loader_iterations
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.grouping import group
from traceq.intervals import contains, spans
from traceq.model import Category, Trace
from traceq.units import Unit, format_value

__all__ = ["HostCauses", "host_causes", "host_words", "lack_host_ops"]

HostCauses = Mapping[tuple[IdleCause, str, str, str], float]
"""(cause, op, line, phase) -> ns of a mean counted step, as the rows of `idle` have it."""

_FIRST_BATCH = "until its first batch"
"""In place of the op: what the loader does once, its workers' start included."""

_MOST, _LEAST_SHARE, _LEAST_REST = 2, 0.1, 0.01
"""Causes that are named at most, and the parts of the host-bound time from which one is, and what is left is told."""


def host_causes(trace: Trace) -> HostCauses:
    """Return what the host does in the counted steps while the device waits for the next launch.

    Without a device: where the main thread is in Python between ops; nothing if no op is recorded, as then it is not
    known what is Python.
    """
    if not len(device_work(trace)) and not len(trace.events.rows(Category.CPU_OP)):
        return {}
    idle, names = idleness(trace), phases(trace).names
    category = TimeCategory.HOST_BOUND if len(device_work(trace)) else TimeCategory.PYTHON
    pieces, begins = np.flatnonzero(idle.category == category), loader_iterations(trace)
    starts = contains(spans(*begins.whole[~begins.is_again & begins.starts_workers].T), idle.parts[pieces, 0])
    starts &= idle.cause[pieces] == IdleCause.DATA_LOADER
    groups = group([*(each[pieces] for each in (idle.cause, idle.name, idle.line, idle.phase)), starts.view(np.int8)])
    num_steps = int(steps(trace).counted.sum())
    sums = groups.sum((idle.parts[:, 1] - idle.parts[:, 0])[pieces])
    return {
        (IdleCause(cause), _FIRST_BATCH if is_start else idle.texts[op], idle.texts[line], names[phase]): ns / num_steps
        for (cause, op, line, phase, is_start), ns in zip(groups.keys.tolist(), sums, strict=True)
    }


def lack_host_ops(ranks: Sequence[HostCauses]) -> bool:
    """Return whether traces have no host ops, so that it is not known what the host does."""
    return any(cause == IdleCause.HOST for rank in ranks for cause, *_ in rank)


def host_words(ranks: Sequence[HostCauses], host_bound_ns: float, *, makes_own_batches: bool) -> str:
    """Return `106 ms at image.py:390 resize, 33.3 ms in aten::stack in forward, 27.0 ms elsewhere`, mean of ranks.

    A data loader whose batches the main thread makes itself is one with `num_workers=0`. "" where none has much of the
    time, or nothing is known but that the host is not in a call.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    loader = "the data loader (num_workers=0)" if makes_own_batches else "the data loader"
    for rank in ranks:
        for (cause, op, line, phase), ns in rank.items():
            sums[_place_words(cause, op, line, phase, loader)] += ns / len(ranks)
    largest = sorted((-ns, place) for place, ns in sums.items() if ns >= _LEAST_SHARE * host_bound_ns)
    named = [each for each in largest if each[1]][:_MOST]
    rest_ns = host_bound_ns + sum(ns for ns, _ in named)
    words = [f"{format_value(-ns, Unit.NS)} {place}" for ns, place in named]
    elsewhere = [f"{format_value(rest_ns, Unit.NS)} elsewhere"] if rest_ns >= _LEAST_REST * host_bound_ns else []
    return ", ".join([*words, *elsewhere]) if words else ""


def _place_words(cause: IdleCause, op: str, line: str, phase: str, loader: str) -> str:
    """Return where the host is, with the phase of what has no line; "" in a trace without host ops, which cannot tell.

    The `loader` is one whose batches the main thread makes itself, or not.
    """
    place = _place(cause, op, line, loader)
    return place if line or not place else f"{place} {in_phase(phase)}"


def _place(cause: IdleCause, op: str, line: str, loader: str) -> str:
    if cause == IdleCause.HOST:
        return ""
    at_line = f"at {line}" if line else ""
    if cause == IdleCause.DATA_LOADER:
        return " ".join(filter(None, ("in", loader, op, at_line)))
    if cause == IdleCause.PYTHON:
        return at_line or python_place(op)
    return f"in {op} {at_line}".strip()
