"""Runs of a kernel that take many times as long as all others of the same work: the device did something else then.

A kernel that is preempted, by another process or for a page fault, shows as one long run; no other kernel of the same
op would shorten it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernel_names import short_kernel
from traceq.facts.memo import once_per_trace
from traceq.facts.roofline.modelled_ops import modelled_ops
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Trace

_LONG, _LEAST_NS = 20, 1_000
"""How many times the median of the same work an interrupted run takes at least; what a median counts as at least."""
_LEAST_RUNS = 3
"""Runs of the same work from which the median says how long it takes."""
_RARE_RUNS, _RARE_STEPS = 20, 4
"""Of so many runs, and in so many counted steps, one may be long: what recurs is no interruption."""


@frozen
class Interruption:
    """One run of a kernel, in an op with a model, that took `ns` where the same work takes `usual_ns`."""

    op: str
    kernel: str
    ns: int
    usual_ns: int


@once_per_trace
def interrupted_ns(trace: Trace) -> NDArray[np.int64]:
    """Return by how much each piece of device time was interrupted: int64[U] ns, of the pieces of `modelled_ops`.

    The same work is that of one kernel and grid, in ops of one name and one set of shapes.
    """
    ops, events = modelled_ops(trace), trace.events
    excess = np.zeros(len(ops.unit_row), np.int64)
    owned = np.flatnonzero(ops.unit_op >= 0)
    if len(device_work(trace)) == 0 or len(owned) == 0:
        return excess
    rows, op = ops.unit_row[owned], ops.unit_op[owned]
    alike = group(
        [events.name[rows].astype(np.int64), events.grid[rows].astype(np.int64), ops.name[op], ops.shapes[op]]
    )
    ns, num = ops.unit_ns[owned], np.array(alike.count(), np.int64)
    order = np.lexsort((ns, alike.group_ids))
    first = np.cumsum(num) - num
    median = ns[order][first + (num - 1) // 2]
    is_long = ns > _LONG * np.maximum(median, _LEAST_NS)[alike.group_ids]
    most = np.minimum(np.maximum(num // _RARE_RUNS, 1), max(int(steps(trace).counted.sum()) // _RARE_STEPS, 1))
    is_rare = (num >= _LEAST_RUNS) & (alike.totals(is_long) <= most)
    chosen = np.flatnonzero(is_long & is_rare[alike.group_ids])
    excess[owned[chosen]] = ns[chosen] - median[alike.group_ids[chosen]]
    return excess


def interruptions(trace: Trace) -> tuple[Interruption, ...]:
    """Return the interrupted runs of a trace, the longest first."""
    ops, events, excess = modelled_ops(trace), trace.events, interrupted_ns(trace)
    units = np.flatnonzero(excess)
    return tuple(
        Interruption(
            op=ops.texts[ops.name[ops.unit_op[unit]]],
            kernel=short_kernel(events.strings[events.name[ops.unit_row[unit]]]),
            ns=int(ops.unit_ns[unit]),
            usual_ns=int(ops.unit_ns[unit] - excess[unit]),
        )
        for unit in units[np.argsort(-excess[units], kind="stable")].tolist()
    )
