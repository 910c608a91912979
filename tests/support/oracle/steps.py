"""Steps and their windows."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

from .phases import Phases
from .reader import Trace


def windows(trace: Trace, phases: Phases, opens: int | None) -> list[dict[str, Any]]:
    """One row a step, in time order: host duration, window and its edges, lag, whether it is partial.

    `opens` is where the first window begins if the trace opens with unrecorded work.
    """
    edges = device_edges(trace, opens)
    is_whole = trace.host_steps[:1] and trace.host_steps[0][0] == "whole trace"
    rows = []
    for index, (name, start, end) in enumerate(trace.host_steps):
        left, right = (edges[index], edges[index + 1]) if edges else (start, end)
        if is_whole and opens is not None:
            left = opens
        rows.append(
            {
                "index": index,
                "name": name,
                "dur_ns": end - start,
                "window": "device" if edges else "host",
                "start_ns": left,
                "end_ns": right,
                "window_ns": right - left,
                "partial": index == 0
                and (
                    holds_earlier_work(trace, phases, left, right)
                    or (left == start and 1000 * (right - end) > right - left)
                ),
                "lag_ns": right - end if edges else 0,
            }
        )
    usual = median(row["window_ns"] for row in rows) if rows else 0
    for row in rows:
        row["partial"] = row["partial"] or 10 * row["window_ns"] < usual
    return rows


def device_edges(trace: Trace, opens: int | None) -> list[int]:
    """The edges of the device windows: one more than steps; empty if the steps use their host windows."""
    names = [name for name, _, _ in trace.host_steps]
    is_marked, by_engine = names != ["whole trace"], not any(name.startswith("ProfilerStep#") for name in names)
    if not is_marked or not trace.device_ops:
        return []
    edges = [trace.host_steps[0][1] if opens is None else opens]
    for _, _, host_end in trace.host_steps:
        launched = [
            op.end for op in trace.device_ops if op.row in trace.launches and trace.launches[op.row].start < host_end
        ]
        edges.append(max([edges[-1], *launched, *([host_end] if len(names) == 1 and not by_engine else [])]))
    outlives = edges == [*trace.host_steps[0][1:]] and not by_engine
    is_empty = any(right <= left for left, right in pairwise(edges))
    return [] if is_empty or outlives else edges


def holds_earlier_work(trace: Trace, phases: Phases, left: int, right: int) -> bool:
    """Whether device work launched before the trace runs inside the window."""
    return any(
        op.start < right and op.end > left and phases.of_op[op.row] == "before_window" for op in trace.device_ops
    )
