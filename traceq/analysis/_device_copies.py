"""Exposed copies: how fast they are, and which no overlap can hide, those within a device on a stream that computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from traceq.facts.events.communication_kernels import is_communication
from traceq.facts.events.copies import OVER_LINK, WITHIN_DEVICE, copy_kind
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import innermost_ops
from traceq.facts.events.name_patterns import matching, unique_names
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace
from traceq.units import Unit, format_value

__all__ = ["exposed_copies", "exposed_device_copies", "rate_words"]

_NAMED = 2
"""Kinds of copies whose bandwidth is told."""


def exposed_copies(trace: Trace) -> dict[str, tuple[int, int]]:
    """Return (bytes, ns) of all copies of each kind that are exposed in counted steps, wholly or in part."""
    events, work, pieces = trace.events, device_work(trace), activity(trace)
    exposed = pieces.owner[in_counted_steps(trace) & (pieces.category == TimeCategory.EXPOSED_MEMCPY)]
    sums: dict[str, tuple[int, int]] = {}
    copies = sorted_unique(exposed)
    copies = copies[events.category[work.rows[copies]] == Category.MEMCPY]
    names, of_name = unique_names(events, work.rows[copies])
    for number, name in enumerate(names.tolist()):
        chosen = copies[of_name == number]
        size, ns = sums.get(kind := copy_kind(events.strings[name]).text, (0, 0))
        moved, took = events.bytes[work.rows[chosen]], work.end[chosen] - work.start[chosen]
        sums[kind] = size + int(np.maximum(moved, 0).sum()), ns + int(took.sum())
    return sums


def rate_words(copies: Sequence[Mapping[str, tuple[int, int]]], link: float = 0.0) -> str:
    """Return `DtoH pinned at 8.7 of 26.0 GB/s, HtoD pinned at 5.0 GB/s` of the ranks' longest exposed copies.

    Of known size; `link`: bytes per second that copies reach between host and device, 0 where it is not known.
    """
    sums: dict[str, tuple[int, int]] = {}
    for of_rank in copies:
        for kind, (size, ns) in of_rank.items():
            sums[kind] = sums.get(kind, (0, 0))[0] + size, sums.get(kind, (0, 0))[1] + ns
    longest = sorted((each for each in sums.items() if all(each[1])), key=lambda each: -each[1][1])[:_NAMED]
    rates = [(kind, size / ns, link / 1e9 * kind.startswith(OVER_LINK)) for kind, (size, ns) in longest]
    return ", ".join(
        f"{kind} at " + (f"{gbps:.1f} of " if gbps < most else "") + format_value(max(gbps, most), Unit.GBPS)
        for kind, gbps, most in rates
    )


def exposed_device_copies(trace: Trace) -> dict[str, float]:
    """Return ns per counted step of the exposed copies within a device on streams that compute, by the op they are of.

    The op is "" where none is around the copy's launch.
    """
    events, work, pieces = trace.events, device_work(trace), activity(trace)
    if not len(work):
        return {}
    computes = (events.category[work.rows] == Category.KERNEL) & ~is_communication(trace)
    is_copy = matching(events, work.rows, WITHIN_DEVICE) & np.isin(work.stream, work.stream[computes])
    exposed = np.flatnonzero(in_counted_steps(trace) & (pieces.category == TimeCategory.EXPOSED_MEMCPY))
    exposed = exposed[is_copy[pieces.owner[exposed]]]
    ops, of_piece = np.unique(innermost_ops(trace, work.call[pieces.owner[exposed]]), return_inverse=True)
    ns = np.bincount(of_piece, weights=pieces.ns[exposed], minlength=len(ops)) / int(steps(trace).counted.sum())
    by_name: dict[str, float] = {}
    for row, op_ns in zip(ops.tolist(), ns.tolist(), strict=True):
        name = events.text(row) if row >= 0 else ""
        by_name[name] = by_name.get(name, 0.0) + op_ns
    return by_name
