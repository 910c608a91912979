"""Time of the counted steps that is lost once: the device, or without one the host, does nothing else meanwhile."""

from __future__ import annotations

import numpy as np

from traceq.claims.limits import NEARLY_ALL
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.timeline.once import OnceKind, once
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.frozen import frozen
from traceq.intervals import span_index
from traceq.model import Category, Trace


@frozen
class LostOnce:
    """Time of one kind, ns in all counted steps, of which `name` takes the longest part.

    `name` is a call or an op: of one that takes nearly all of the ops around it the outermost; of a pause what follows;
    `before cuLaunchKernel` where the host prepares that launch in no op.
    """

    kind: OnceKind
    name: str
    ns: int


def lost_once_ns(trace: Trace) -> int:
    """Return the time of all kinds."""
    done = activity(trace)
    return int(done.ns[in_counted_steps(trace) & (done.category == TimeCategory.ONCE)].sum())


def lost_once_share(trace: Trace) -> float:
    """Return which part of the counted steps that is."""
    return lost_once_ns(trace) / max(int(np.diff(steps(trace).window[steps(trace).counted]).sum()), 1)


def lost_once(trace: Trace) -> list[LostOnce]:
    """Return the time by kind, the longest first."""
    done, times = activity(trace), once(trace)
    pieces = np.flatnonzero(in_counted_steps(trace) & (done.category == TimeCategory.ONCE))
    ns = np.zeros(len(times.parts), np.int64)
    np.add.at(ns, span_index(times.parts, done.parts[pieces, 0]), done.ns[pieces])
    lost = []
    for kind in OnceKind:
        of_kind = np.where(times.kind == kind, ns, 0)
        if of_kind.any():
            lost.append(LostOnce(kind, _name(trace, kind, int(times.row[of_kind.argmax()])), int(of_kind.sum())))
    return sorted(lost, key=lambda each: -each.ns)


def _name(trace: Trace, kind: OnceKind, row: int) -> str:
    """Return the name of a call or op: of a start or load that of the outermost op of which it is nearly all."""
    events = trace.events
    if row < 0:
        return ""
    if kind is OnceKind.FIRST_CALL and events.category[row] == Category.RUNTIME:
        return f"before {events.text(row)}"
    ops = host_ops(trace).get(int(tracks(trace)[row]))
    if ops is None or kind not in (OnceKind.DEVICE_START, OnceKind.KERNEL_LOADING):
        return events.text(row)
    around = ops.rows[(ops.start <= events.ts[row]) & (ops.end >= events.end[row])]
    around = around[NEARLY_ALL * events.dur[around] <= events.dur[row]]
    return events.text(int(around[events.dur[around].argmax()])) if len(around) else events.text(row)
