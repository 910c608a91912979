"""How long the ops and the allocations of a phase take on the host, whether or not the device waits for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.nesting import host_ops
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.intervals import Spans, span_index
from traceq.model import Trace


def host_ops_ns(trace: Trace, phase: str) -> float:
    """Return the time of the outermost ops of a phase on all threads, without what blocks in them, ns per step."""
    number, windows, taken_ns = _number(trace, phase), steps(trace).host[steps(trace).counted], 0
    for track, ops in host_ops(trace).items():
        start = ops.start[ops.parent < 0]
        is_here = (phases(trace).phase_at(np.full(len(start), track), start) == number) & _is_in(windows, start)
        taken_ns += int((ops.end[ops.parent < 0] - start)[is_here].sum())
    blocked = (syncs(trace).phase == number) & _is_in(windows, syncs(trace).start)
    return (taken_ns - int(syncs(trace).blocked[blocked].sum())) / len(windows)


def allocations_ns(trace: Trace, phase: str) -> float:
    """Return the time of the calls by which an allocator asks the driver, or gives back, in a phase, ns per step."""
    waits, windows = syncs(trace), steps(trace).host[steps(trace).counted]
    is_here = (waits.kind == SyncKind.ALLOC) & (waits.phase == _number(trace, phase)) & _is_in(windows, waits.start)
    return int(waits.blocked[is_here].sum()) / len(windows)


def _number(trace: Trace, phase: str) -> int:
    """Return the number of a phase, -1 if the trace does not have it."""
    names = phases(trace).names
    return names.index(phase) if phase in names else -1


def _is_in(windows: Spans, start: NDArray[np.int64]) -> NDArray[np.bool_]:
    return span_index(windows, start) >= 0
