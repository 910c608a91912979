"""Copies between host and device, and the ops in which the host reads from the device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import innermost_ops
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.timeline.blocking_copies_and_syncs import TO_DEVICE, TO_HOST
from traceq.intervals import sorted_unique
from traceq.model import Trace

__all__ = ["host_copies", "ops_that_copy_to_host"]


def host_copies(trace: Trace) -> NDArray[np.int64]:
    """Return the copies from host to device and back, as indices into DeviceWork."""
    work, events = device_work(trace), trace.events
    return np.flatnonzero(matching(events, work.rows, TO_HOST) | matching(events, work.rows, TO_DEVICE))


def ops_that_copy_to_host(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of the innermost ops that launch a copy to the host.

    Of a copy without a recorded launch: those open when it begins, on the threads that launch work.
    """
    work, ops_of = device_work(trace), host_ops(trace)
    copies = np.flatnonzero(matching(trace.events, work.rows, TO_HOST))
    linked = work.linked[copies]
    rows = [innermost_ops(trace, work.call[copies[linked]])]
    for track in sorted_unique(tracks(trace)[work.call[work.linked]]).tolist():
        if track in ops_of and not linked.all():
            rows.append(np.r_[ops_of[track].rows, -1][ops_of[track].innermost_at(work.start[copies[~linked]])])
    ops = sorted_unique(*rows)
    return ops[ops >= 0]
