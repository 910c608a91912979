"""What traceq worked out, as tracks above the trace's own: steps, phases, where the time goes, syncs, collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import COLLECTIVE_NAMES, collective_calls, collective_kernels
from traceq.facts.events.device_work import device_work
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.intervals import Spans
from traceq.model import Trace
from traceq.renderers.perfetto.slices import Argument
from traceq.renderers.perfetto.worst_place import syncs_of
from traceq.report import Finding
from traceq.units import Unit, format_value

__all__ = ["QueueDepth", "Rows", "derived", "queue_depth"]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """N slices of one track: `spans` int64[N, 2] ns, `name` int64[N] into `names`; `flow` int64[N] as in Slices."""

    title: str
    spans: Spans
    name: NDArray[np.int64]
    names: Sequence[str]
    arguments: Sequence[Argument] = ()
    flow: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.spans)


@dataclass(frozen=True, slots=True, eq=False)
class QueueDepth:
    """`num` int64[M] pieces of device work that are launched and have not begun, from `at` int64[M] ns on."""

    at: NDArray[np.int64]
    num: NDArray[np.int64]


def derived(trace: Trace, findings: Sequence[Finding], waits: NDArray[np.int64]) -> tuple[Rows, ...]:
    """The tracks of one trace that hold something, in order.

    `waits` int64[N] ns says of collective calls, by their row of Events, how long this rank waits in them for others;
    -1 = unknown.
    """
    found = (
        _steps(trace),
        _phases(trace),
        _findings(trace, findings),
        _partition(trace),
        _exposed(trace),
        _syncs(trace),
        _collectives(trace, waits),
    )
    return tuple(rows for rows in found if len(rows))


def queue_depth(trace: Trace) -> QueueDepth:
    """How far the host is ahead; empty without a device."""
    work = device_work(trace)
    launched, begun = trace.events.ts[work.call[work.linked]], work.start[work.linked]
    at, change = np.concatenate([launched, begun]), np.repeat([1, -1], len(begun))
    order = np.argsort(at, kind="stable")
    at, depth = at[order], np.cumsum(change[order])
    last = np.r_[np.diff(at) > 0, np.ones(min(len(at), 1), np.bool_)]
    return QueueDepth(at[last], np.maximum(depth[last], 0))


def _steps(trace: Trace) -> Rows:
    found = steps(trace)
    names = [
        name + (" (partial)" if cut else "") for name, cut in zip(found.names, found.partial.tolist(), strict=True)
    ]
    return Rows("steps", found.window, np.arange(len(found)), names)


def _phases(trace: Trace) -> Rows:
    found = phases(trace)
    return Rows("phases", found.main.parts, found.main.label, found.names)


def _partition(trace: Trace) -> Rows:
    """One slice for each stretch of one category and phase."""
    done = activity(trace)
    changes = (np.diff(done.doing) != 0) | (np.diff(done.phase) != 0)
    first = np.flatnonzero(np.r_[True, changes])
    last = np.r_[first[1:] - 1, len(done.doing) - 1]
    stretches = np.column_stack([done.parts[first, 0], done.parts[last, 1]])
    names = [doing.name.lower() for doing in TimeCategory]
    phase = Argument("phase", done.phase[first], phases(trace).names)
    return Rows("where the time goes", stretches, done.doing[first].astype(np.int64), names, (phase,))


def _exposed(trace: Trace) -> Rows:
    spans = activity(trace).when(TimeCategory.EXPOSED_COMM)
    return Rows("exposed communication", spans, np.zeros(len(spans), np.int64), ("exposed_comm",))


def _syncs(trace: Trace) -> Rows:
    found = syncs(trace)
    origin = found.origin
    place = np.where(origin.line > 0, origin.line, origin.op)
    pairs, name = np.unique(np.column_stack([found.kind.astype(np.int64), place]), axis=0, return_inverse=True)
    names = [f"{SYNC_KINDS[kind]} {origin.texts[text]}".strip() for kind, text in pairs.tolist()]
    arguments = (
        Argument("cost_ns", found.cost),
        Argument("blocked_ns", found.blocked),
        Argument("wait_ns", found.wait),
        Argument("bytes", found.bytes),
        Argument("op", _told(origin.op), origin.texts),
        Argument("module", _told(origin.module), origin.texts),
        Argument("phase", found.phase, phases(trace).names),
    )
    return Rows(
        "syncs", np.column_stack([found.start, found.start + found.blocked]), name.reshape(-1), names, arguments
    )


def _told(text: NDArray[np.int64]) -> NDArray[np.int64]:
    """-1 for the first text of Origins, which is empty."""
    return np.where(text > 0, text, -1)


def _collectives(trace: Trace, waits: NDArray[np.int64]) -> Rows:
    """Kernels of collectives; without any, their calls."""
    work, calls, kernels = device_work(trace), collective_calls(trace), collective_kernels(trace)
    if len(kernels.work):
        call, name = kernels.call, kernels.name
        spans = np.column_stack([work.start[kernels.work], work.end[kernels.work]])
        phase = phases(trace).of_work[kernels.work]
    else:
        call, name, phase = np.arange(len(calls)), calls.name, calls.phase
        spans = np.column_stack([trace.events.ts[calls.rows], trace.events.end[calls.rows]])
    known = call >= 0
    size, waited = np.full(len(call), -1), np.full(len(call), -1)
    size[known], waited[known] = calls.size[call[known]], waits[calls.rows[call[known]]]
    pairs, number = np.unique(np.column_stack([name, size]), axis=0, return_inverse=True)
    names = [_collective_name(*pair) for pair in pairs.tolist()]
    duration = spans[:, 1] - spans[:, 0]
    mbps = np.where((size > 0) & (duration > 0), size * 1000 // np.maximum(duration, 1), -1)
    arguments = (
        Argument("bytes", size),
        Argument("algbw_mb_per_s", mbps),
        Argument("waits_for_others_ns", waited),
        Argument("phase", phase, phases(trace).names),
    )
    return Rows("collectives", spans, number.reshape(-1), names, arguments)


def _collective_name(name: int, size_bytes: int) -> str:
    return COLLECTIVE_NAMES[name] + (f" {format_value(size_bytes, Unit.BYTES)}" if size_bytes >= 0 else "")


def _findings(trace: Trace, findings: Sequence[Finding]) -> Rows:
    """Instants: a finding about a sync where that sync costs most, any other at the start of the first whole step."""
    found = syncs(trace)
    first = int(steps(trace).window[steps(trace).counted][0, 0])
    at = []
    for finding in findings:
        own = syncs_of(trace, finding)
        at.append(int(found.start[own[np.argmax(found.cost[own])]]) if len(own) else first)
    instants = np.array(at, np.int64)
    names = [finding.text for finding in findings]
    return Rows("findings", np.column_stack([instants, instants]), np.arange(len(names)), names)
