"""Waits between streams of work launched before the window, by coincidence of times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import DeviceWork
from traceq.intervals import sorted_unique

__all__ = ["early_waits"]

_MAX_GAP_NS = 12_000
_LEAD_NS = 1_000


def early_waits(work: DeviceWork) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (work, the work of another stream that it waits for), both launched before the window.

    That is the last such work that ended within 12 us before the start, if later than that of its own stream.
    """
    early = np.flatnonzero(work.before_window)
    by_end = early[np.argsort(work.end[early], kind="stable")]
    ends = work.end[by_end]
    previous_end = np.full(len(work), np.iinfo(np.int64).min)
    for number in sorted_unique(work.stream[early]).tolist():
        on_stream = early[work.stream[early] == number]
        previous_end[on_stream[1:]] = work.end[on_stream[:-1]]
    index = np.searchsorted(ends, work.start[early], "right") - 1
    awaited, pending = np.full(len(early), -1), np.arange(len(early))
    while len(pending):
        candidate = np.r_[by_end, -1][index[pending]]
        near = (index[pending] >= 0) & (work.start[early[pending]] - work.end[candidate] < _MAX_GAP_NS)
        near &= work.end[candidate] - _LEAD_NS > previous_end[early[pending]]
        pending, candidate = pending[near], candidate[near]
        is_other = work.stream[candidate] != work.stream[early[pending]]
        awaited[pending[is_other]] = candidate[is_other]
        pending = pending[~is_other]
        index[pending] -= 1
    waits = awaited >= 0
    return early[waits], awaited[waits]
