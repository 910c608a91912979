"""Outline of one rank: its trace without events: identity, time range and steps."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from traceq.facts.events.device_work import device_work, lacks_device_rows, lacks_host_ops
from traceq.facts.events.kernels import has_untold_ranks
from traceq.facts.events.unrecorded_work import launches_without_rows
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import Steps, extent, steps
from traceq.frozen import frozen
from traceq.model import Allocations, CallStacks, Category, Caveat, Events, EventWaits, GraphNodes, Messages, Trace

T = TypeVar("T", Messages, CallStacks, Allocations, EventWaits, GraphNodes)

_COUNTERS = "cuda_profiler_range"
"""Category of the rows in which CUPTI's range profiler gives the counters of a kernel."""


@frozen(eq=False)
class Outline:
    """One rank's trace without its events.

    `base_time_ns` + a time of the trace is absolute; `extent` (start, end) ns of all host and device events;
    `has_device`: the trace has device work; `lacks_device_rows`: the job has a device, but the trace not;
    `has_counters`: the profiler measured counters of the kernels; `is_foreign`: no event is of PyTorch's profiler;
    `is_empty`: none is an op, an annotation, Python or work of a device. `has_untold_ranks`: `world_size` is not told,
    and other ranks take part in its collectives. `lost_launches`: how many of how many launches of kernels have no row
    of the device; 0 of 0 without device work.
    """

    path: str
    rank: int
    world_size: int
    device: str
    num_events: int
    caveats: tuple[Caveat, ...]
    base_time_ns: int
    extent: tuple[int, int]
    has_device: bool
    lacks_device_rows: bool
    has_counters: bool
    is_foreign: bool
    is_empty: bool
    has_untold_ranks: bool
    lost_launches: tuple[int, int]
    steps: Steps


@once_per_trace
def outline(trace: Trace) -> Outline:
    """Return the outline of a trace."""
    return Outline(
        path=trace.path,
        rank=trace.rank,
        world_size=trace.world_size,
        device=trace.device,
        num_events=len(trace.events),
        caveats=trace.caveats,
        base_time_ns=trace.base_time_ns,
        extent=extent(trace),
        has_device=len(device_work(trace)) > 0,
        lacks_device_rows=lacks_device_rows(trace),
        has_counters=_COUNTERS in trace.events.strings,
        is_foreign=not (trace.events.category != Category.OTHER).any(),
        is_empty=lacks_host_ops(trace) and not len(device_work(trace)),
        has_untold_ranks=has_untold_ranks(trace),
        lost_launches=launches_without_rows(trace) if len(device_work(trace)) else (0, 0),
        steps=steps(trace),
    )


def head(trace: Trace) -> Trace:
    """Return the trace with only its first event by time, and without the lines of its events."""
    return replace(trace, events=_first_event(trace.events), embedded="", lines=None)


def _first_event(events: Events) -> Events:
    """Return the first event by time, without strings and tables."""
    index = int(np.argmin(events.ts))
    columns = {column.name: getattr(events, column.name) for column in fields(events)}
    first = {name: column[index : index + 1] for name, column in columns.items() if isinstance(column, np.ndarray)}
    return Events(
        strings=(),
        **first,
        messages=_without_rows(events.messages),
        stacks=_without_rows(events.stacks),
        allocations=_without_rows(events.allocations),
        waits=_without_rows(events.waits),
        nodes=_without_rows(events.nodes),
    )


def _without_rows(table: T) -> T:
    """Return the table without its rows."""
    return type(table)(**{column.name: getattr(table, column.name)[:0] for column in fields(table)})
