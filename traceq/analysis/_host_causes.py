"""Where the host is while the device waits for it, or without a device between ops: the largest causes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from traceq.analysis._wording import in_phase, plain_phase, python_place
from traceq.claims.claim import Measure, Subject, measured
from traceq.claims.limits import MOST
from traceq.facts.events.device_work import device_work
from traceq.facts.stalls.idle_time import IdleCause, idleness
from traceq.facts.timeline.data_loading import loader_iterations
from traceq.facts.timeline.host_pauses import host_pauses
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.grouping import group
from traceq.intervals import contains, measure_within, spans
from traceq.model import Category, Trace
from traceq.units import Unit, format_value

__all__ = ["HostCauses", "host_causes", "most_of_host"]

HostCauses = Mapping[tuple[IdleCause, str, str, str], float]
"""(cause, op, line, phase) -> ns of a mean counted step, as the rows of `idle` have it but for the host's pauses."""

_FIRST_BATCH = "until its first batch"
"""In place of the op: what the loader does once, its workers' start included."""

_MOST_NAMED, _LEAST_NAMED = 2, 0.1
"""Causes that are named at most, and the part of the host-bound time from which one is."""


def host_causes(trace: Trace) -> HostCauses:
    """Return what the host does in the counted steps while the device waits for the next launch.

    Where it pauses it does nothing: the op in which a thread happens to be is not what takes the time. Without a
    device: where the main thread is in Python between ops; nothing if no op is recorded, as then it is not known what
    is Python.
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
    times = idle.parts[pieces]
    sums = groups.sum(times[:, 1] - times[:, 0] - measure_within(host_pauses(trace), *times.T))
    return {
        (IdleCause(cause), _FIRST_BATCH if is_start else idle.texts[op], idle.texts[line], names[phase]): ns / num_steps
        for (cause, op, line, phase, is_start), ns in zip(groups.keys.tolist(), sums, strict=True)
    }


def most_of_host(ranks: Sequence[HostCauses], host_ns: float) -> tuple[Subject, dict[str, Measure]]:
    """Return the place with most of `host_ns`, and in words that and the largest ones, mean of ranks.

    Nothing where no place has much of it, where that is the first batch, which nothing there makes shorter, or where it
    is known only that the host is not in a call.
    """
    sums, subjects = defaultdict[str, float](float), dict[str, Subject]()
    for rank in ranks:
        for (cause, op, line, phase), ns in rank.items():
            place = _place_words(cause, op, line, phase)
            sums[place] += ns / len(ranks)
            is_op = cause == IdleCause.HOST_OP
            subjects[place] = Subject(phase="" if line else phase, line=line, op=op if is_op else "")
    largest = sorted((-ns, place) for place, ns in sums.items() if place and ns >= _LEAST_NAMED * host_ns)[:_MOST_NAMED]
    places = ", ".join(f"{format_value(-ns, Unit.NS)} {place}" for ns, place in largest)
    most = next((place for ns, place in largest if -ns >= MOST * host_ns and _FIRST_BATCH not in place), "")
    return subjects.get(most, Subject()), measured(place=most, places=places)


def _place_words(cause: IdleCause, op: str, line: str, phase: str) -> str:
    """Return where the host is, with the phase of what has no line; "" without host ops, which alone could tell."""
    place = _place(cause, op, line)
    return place if line or not place else f"{place} {in_phase(plain_phase(phase))}"


def _place(cause: IdleCause, op: str, line: str) -> str:
    if cause == IdleCause.HOST:
        return ""
    at_line = f"at {line}" if line else ""
    if cause == IdleCause.DATA_LOADER:
        return " ".join(filter(None, ("in the data loader", op, at_line)))
    if cause == IdleCause.PYTHON:
        return at_line or python_place(op)
    return f"in {op} {at_line}".strip()
