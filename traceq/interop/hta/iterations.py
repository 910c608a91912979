"""The profiler step of each row, by HTA's rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["iterations"]

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")


def iterations(columns: Mapping[str, Any], ids: Mapping[str, int]) -> NDArray[Any]:
    """Return the number of the profiler step in which each row starts, of a device row that of its launch; else -1.

    HTA does not tell the step of device work on stream 0: float64[N] with NaN there, else an integer type.
    """
    ts, stream, partner = columns["ts"], columns["stream"], columns["index_correlation"]
    starts_in = _step_at(ts, *_steps(columns, ids))
    on_host = stream < 0
    if (cpu_op := ids.get("cpu_op")) is not None:  # Triton's have stream 0
        on_host |= (stream == 0) & (columns["cat"] == cpu_op)
    result = np.where(on_host, starts_in, np.nan)
    launches = np.searchsorted(columns["index"], np.maximum(partner, 0))
    launched_in = np.where(partner > 0, result[np.minimum(launches, len(ts) - 1)], -1)
    result = np.where(stream > 0, launched_in, result)
    return result if np.isnan(result).any() else result.astype(np.int64)


def _steps(columns: Mapping[str, Any], ids: Mapping[str, int]) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Return (starts, ends, numbers) of the rows that mark a step, in file order."""
    names = {number: _STEP.match(name) for name, number in ids.items() if name.startswith("ProfilerStep")}
    rows = np.flatnonzero(np.isin(columns["name"], list(names)))
    numbers = [int(match[1]) if (match := names[name]) else -1 for name in columns["name"][rows].tolist()]
    start = columns["ts"][rows]
    return start, start + columns["dur"][rows], np.array(numbers, np.int64)


def _step_at(
    ts: NDArray[Any], starts: NDArray[Any], ends: NDArray[Any], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of the last step, in the order given, that holds each time; -1 where none does."""
    edges = np.unique(np.concatenate([starts, ends]))
    between = np.full(len(edges) + 1, -1)  # times from edges[i - 1] to edges[i]
    for start, end, number in zip(starts, ends, numbers, strict=True):
        between[np.searchsorted(edges, start) + 1 : np.searchsorted(edges, end) + 1] = number
    return between[np.searchsorted(edges, ts, "right")]
