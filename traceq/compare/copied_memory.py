"""Copies of which the host's memory differs between two sides, as from pageable to pinned, with their bandwidth."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from traceq.compare.cost_centers import LAUNCHES
from traceq.compare.result import AND, Cause
from traceq.facts.events.copies import CopyKind, copy_kind
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import unique_names
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.phases import phases
from traceq.grouping import group
from traceq.model import Category, Trace
from traceq.units import Unit, format_value

__all__ = ["with_copied_memory"]


def with_copied_memory(causes: tuple[Cause, ...], a: Trace, b: Trace) -> tuple[Cause, ...]:
    """Return the causes, copies with the host's memory on both sides and the bandwidth where that differs."""
    return tuple(_with_memory(cause, a, b) if cause.kind == "memcpy" else cause for cause in causes)


def _with_memory(cause: Cause, a: Trace, b: Trace) -> Cause:
    direction, of_phases = cause.work.rpartition(LAUNCHES)[2], cause.phase.split(AND)
    sides = []
    for trace in (a, b):
        sums = [each for each in _copied(trace) if each.kind.direction == direction and each.phase in of_phases]
        memory = {each.kind.memory for each in sums}
        size, ns = sum(each.size_bytes for each in sums), sum(each.ns for each in sums)
        sides.append((memory.pop() if len(memory) == 1 else "", size / ns if ns else 0.0))
    (of_a, a_gbps), (of_b, b_gbps) = sides
    if not of_a or not of_b or of_a == of_b:
        return cause
    rates = f"{a_gbps:.1f} -> {format_value(b_gbps, Unit.GBPS)}"
    return replace(cause, memory=f"{of_a} -> {of_b}, {rates}")


class _Copied(NamedTuple):
    """All copies of a kind that a phase launched."""

    kind: CopyKind
    phase: str
    size_bytes: int
    ns: int


@once_per_trace
def _copied(trace: Trace) -> tuple[_Copied, ...]:
    events, work, labels = trace.events, device_work(trace), phases(trace)
    copies = np.flatnonzero(events.category[work.rows] == Category.MEMCPY)
    names, of_name = unique_names(events, work.rows[copies])
    groups = group([of_name, labels.work_phase[copies]])
    kinds = [copy_kind(events.strings[name]) for name in names.tolist()]
    sizes = groups.sum(np.maximum(events.bytes[work.rows[copies]], 0))
    times = groups.sum(work.end[copies] - work.start[copies])
    keys = groups.keys.tolist()
    rows = zip(keys, sizes, times, strict=True)
    return tuple(_Copied(kinds[kind], labels.names[phase], size, ns) for (kind, phase), size, ns in rows)
