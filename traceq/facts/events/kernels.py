"""Kernels with the ops that launched them; which of them are so short that launching them takes longer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.memo import once_per_trace
from traceq.model import Category, Trace

__all__ = ["LaunchedKernels", "launched_kernels"]

_TINY_NS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedKernels:
    """K kernels by start: `work` int64[K] into DeviceWork; `ns` int64[K]; `op` int64[K] the row of Events of the
    innermost op around the launch, -1 without one; `tiny` bool[K]: under 10 us, or shorter than the call that launched
    it alone and did not wait for it.
    """

    work: NDArray[np.int64]
    ns: NDArray[np.int64]
    op: NDArray[np.int64]
    tiny: NDArray[np.bool_]


@once_per_trace
def launched_kernels(trace: Trace) -> LaunchedKernels:
    """Every kernel of a trace."""
    work, events = device_work(trace), trace.events
    mine = np.flatnonzero(events.category[work.rows] == Category.KERNEL)
    ns, call = (work.end - work.start)[mine], work.call[mine]
    num_launched = np.bincount(call[call >= 0], minlength=len(events))
    alone = (call >= 0) & (num_launched[call] == 1)
    waited = work.end[mine] <= events.end[call]  # a call that lasts until its kernel is done is no slow launch
    tiny = (ns < _TINY_NS) | (alone & ~waited & (ns < events.dur[call]))
    return LaunchedKernels(mine, ns, _ops_around(trace, call), tiny)


def _ops_around(trace: Trace, calls: NDArray[np.int64]) -> NDArray[np.int64]:
    op = np.full(len(calls), -1)
    track = np.where(calls >= 0, tracks(trace)[calls], -1)
    for number, ops in host_ops(trace).items():
        mine = np.flatnonzero(track == number)
        found = ops.at(trace.events.ts[calls[mine]])
        op[mine] = np.where(found >= 0, ops.rows[found], -1)
    return op
