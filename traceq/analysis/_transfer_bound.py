"""How much of a rank's exposed communication can be transfer, by the shortest collective of each size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import COLLECTIVE_NAMES, collective_calls, collective_kernels
from traceq.facts.events.device_work import device_work
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.grouping import Groups, group
from traceq.model import Trace

__all__ = ["most_transfer_ns"]

_FEWEST = 3
"""Calls of one size from which the shortest says how long a transfer takes."""
_MESSAGES = [COLLECTIVE_NAMES.index(name) for name in ("send", "recv", "send_recv")]


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
