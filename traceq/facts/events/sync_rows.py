"""Streams that `cuda_sync` rows name."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import stream_number
from traceq.facts.events.id_lookup import first_index
from traceq.facts.events.name_patterns import matching
from traceq.model import Category, Trace

__all__ = ["synced_stream"]


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
