"""Launching call of each piece of device work, by correlation id."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.memo import once_per_trace
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

__all__ = ["DeviceWork", "device_work"]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """Kernels, copies and memsets by (start, row), D of them.

    `rows` int64[D] into Events; `start`, `end` int64[D] ns; `call` int64[D] the launching row of Events, -1 without
    one; `stream` int64[D] a number for each (device, stream); `before_window` bool[D]: launched before the trace began.
    """

    rows: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    call: NDArray[np.int64]
    stream: NDArray[np.int64]
    before_window: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def linked(self) -> NDArray[np.bool_]:
        """bool[D]: has a launching call."""
        return self.call >= 0


@once_per_trace
def device_work(trace: Trace) -> DeviceWork:
    """All device work of a trace with its launching calls.

    One call can launch many ops (a graph). Where a correlation id stands on two calls the earlier one launched.
    """
    events = trace.events
    rows = events.rows(Category.KERNEL, Category.MEMCPY, Category.MEMSET)
    rows = rows[np.argsort(events.ts[rows], kind="stable")]
    call = _calls(trace, events.correlation[rows])
    stream = np.maximum(events.device[rows], 0).astype(np.int64) * 2**32 + events.stream[rows]
    start = events.ts[rows]
    return DeviceWork(
        rows=rows,
        start=start,
        end=start + events.dur[rows],
        call=call,
        stream=stream,
        before_window=(call < 0) & (start < _first_linked(stream, start, call >= 0)),
    )


def _calls(trace: Trace, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Row of the earliest runtime call with each correlation id; -1 where none has it."""
    events = trace.events
    calls = events.rows(Category.RUNTIME)
    calls = calls[events.correlation[calls] > 0]
    calls = calls[np.lexsort((calls, events.ts[calls], events.correlation[calls]))]
    ids = events.correlation[calls]
    if len(ids) == 0:
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where((wanted > 0) & (ids[at] == wanted), calls[at], -1)


def _first_linked(stream: NDArray[np.int64], start: NDArray[np.int64], linked: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Start of the first linked op of each op's stream; where the stream has none, a time before everything."""
    first = np.full(len(stream), np.iinfo(np.int64).min)
    for number in sorted_unique(stream[linked]):
        mine = stream == number
        first[mine] = start[mine & linked].min()
    return first
