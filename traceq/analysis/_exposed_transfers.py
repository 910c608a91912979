"""What is exposed of copies and collectives: how fast copies are, which no overlap hides, how much is transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import COLLECTIVE_NAMES, collective_calls, collective_kernels
from traceq.facts.events.copies import OVER_LINK, WITHIN_DEVICE, copy_kind
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import innermost_ops, is_communication
from traceq.facts.events.name_patterns import matching, unique_names
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.grouping import Groups, group
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace
from traceq.units import Unit, format_value

_NAMED = 2
"""Kinds of copies whose bandwidth is told."""
_FEWEST = 3
"""Calls of one size from which the shortest says how long a transfer takes."""
_MESSAGES = [COLLECTIVE_NAMES.index(name) for name in ("send", "recv", "send_recv")]


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


def most_transfer_ns(trace: Trace) -> float:
    """Return the ns of a mean counted step in which exposed collectives transfer, if all of a size take as long.

    Those of the same group, operation, dtype and size in the trace; of one that has few alike all may be transfer.
    """
    work, pieces = device_work(trace), activity(trace)
    most_ns = pieces.ns_of_work(pieces.among(TimeCategory.EXPOSED_COMM) & in_counted_steps(trace), len(work))
    index, alike = _of_known_size(trace)
    ns, shortest_ns = work.end[index] - work.start[index], np.full(len(alike.keys), np.iinfo(np.int64).max)
    np.minimum.at(shortest_ns, alike.group_ids, ns)
    has_alike = np.array(alike.count(), np.int64)[alike.group_ids] >= _FEWEST
    most_ns[index] = np.minimum(most_ns[index], np.where(has_alike, shortest_ns[alike.group_ids], ns))
    return float(most_ns.sum()) / int(steps(trace).counted.sum())


def _of_known_size(trace: Trace) -> tuple[NDArray[np.int64], Groups]:
    """Return (the device work of collectives whose size is recorded, those that are alike).

    Not that of messages, whose peers may be on another machine, nor of coalesced calls, which one kernel runs together.
    """
    work, events, calls, messages = device_work(trace), trace.events, collective_calls(trace), trace.events.messages
    kernels = collective_kernels(trace)
    linked = np.flatnonzero((kernels.call >= 0) & ~np.isin(kernels.name, _MESSAGES) & work.linked[kernels.work])
    call, launched = kernels.call[linked], events.ts[work.call[kernels.work[linked]]]
    begin, end = events.ts[calls.rows[call]], events.end[calls.rows[call]]
    sized = linked[(calls.size[call] > 0) & (calls.message[call] >= 0) & (begin <= launched) & (launched <= end)]
    message = calls.message[kernels.call[sized]]
    columns = messages.group, messages.dtype, messages.elements_in, messages.elements_out
    return kernels.work[sized], group([kernels.name[sized], *(column[message] for column in columns)])
