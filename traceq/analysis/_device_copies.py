"""Exposed copies that no overlap can hide: those within a device, on a stream that computes."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from traceq.facts.events.communication_kernels import is_communication
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import innermost_ops
from traceq.facts.events.name_patterns import matching
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.model import Category, Trace
from traceq.units import Unit, format_value

__all__ = ["copies_of_device_words", "exposed_device_copies"]

_WITHIN_DEVICE = re.compile(r"^Memcpy (DtoD|DeviceToDevice)")


def exposed_device_copies(trace: Trace) -> dict[str, float]:
    """Return ns per counted step of the exposed copies within a device on streams that compute, by the op they are of.

    The op is "" where none is around the copy's launch.
    """
    events, work, pieces = trace.events, device_work(trace), activity(trace)
    if not len(work):
        return {}
    computes = (events.category[work.rows] == Category.KERNEL) & ~is_communication(trace)
    is_copy = matching(events, work.rows, _WITHIN_DEVICE) & np.isin(work.stream, work.stream[computes])
    exposed = np.flatnonzero(in_counted_steps(trace) & (pieces.category == TimeCategory.EXPOSED_MEMCPY))
    exposed = exposed[is_copy[pieces.owner[exposed]]]
    ops, of_piece = np.unique(innermost_ops(trace, work.call[pieces.owner[exposed]]), return_inverse=True)
    ns = np.bincount(of_piece, weights=pieces.ns[exposed], minlength=len(ops)) / int(steps(trace).counted.sum())
    by_name: dict[str, float] = {}
    for row, op_ns in zip(ops.tolist(), ns.tolist(), strict=True):
        name = events.text(row) if row >= 0 else ""
        by_name[name] = by_name.get(name, 0.0) + op_ns
    return by_name


def copies_of_device_words(copies: Mapping[str, float]) -> str:
    """Return `14.5 ms are device-to-device copies by aten::copy_: avoid contiguous(), clone() and layout changes`."""
    largest = max(copies, key=lambda op: copies[op])
    by = f", most of them by {largest}" if len(copies) > 1 else f" by {largest}"
    of_op = by if largest and 2 * copies[largest] >= sum(copies.values()) else ""
    time = format_value(sum(copies.values()), Unit.NS)
    return f"{time} are device-to-device copies{of_op}: avoid contiguous(), clone() and layout changes"
