"""Streams and events that `cuda_sync` rows name."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import stream_number
from traceq.facts.events.id_lookup import first_index
from traceq.facts.events.name_patterns import matching
from traceq.model import Category, Trace

__all__ = ["recorded_events", "synced_stream"]


def synced_stream(trace: Trace, calls: NDArray[np.int64], pattern: re.Pattern[str] | None = None) -> NDArray[np.int64]:
    """Return the stream named by the `cuda_sync` row that shares each call's correlation id: int64[K].

    Streams are numbered as in DeviceWork; -1 without such a row. Only rows whose name matches `pattern` count.
    """
    events = trace.events
    rows = events.rows(Category.SYNC)
    rows = rows[events.stream[rows] >= 0]
    if pattern is not None:
        rows = rows[matching(events, rows, pattern)]
    index = first_index(events.correlation[rows], events.correlation[calls])
    return np.asarray(np.r_[stream_number(events.device[rows], events.stream[rows]), -1][index])


def recorded_events(trace: Trace, calls: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (int64[K] the stream on which the event that each call waits for was recorded, int64[K] ns, when).

    Streams are numbered as in DeviceWork. Both -1 if no `cuda_sync` row of the same correlation tells, or the recording
    call is not in the trace.
    """
    events, waits = trace.events, trace.events.waits
    if len(waits.row) == 0:
        return np.full(len(calls), -1), np.full(len(calls), -1)
    runtime = events.rows(Category.RUNTIME)
    record = np.r_[runtime, -1][first_index(events.correlation[runtime], waits.record)]
    is_recorded = record >= 0
    index = first_index(events.correlation[waits.row[is_recorded]], events.correlation[calls])
    stream = np.r_[stream_number(events.device[waits.row], waits.stream)[is_recorded], -1]
    recorded = np.r_[events.ts[record[is_recorded]], -1]
    return stream[index], recorded[index]
