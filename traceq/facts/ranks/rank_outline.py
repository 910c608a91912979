"""What is known of one rank once its events are gone: who it is, when it ran, and its steps."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from traceq.facts.events.device_work import device_work
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import Steps, extent, steps
from traceq.model import Allocations, CallStacks, Caveat, Events, EventWaits, Messages, Trace

T = TypeVar("T", Messages, CallStacks, Allocations, EventWaits)

__all__ = ["Outline", "head", "outline"]


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """One rank's trace without its events. `base_time_ns` + a time of it is absolute; `extent` (start, end) ns of all
    that host and device did; `has_device`: some device work is in it.
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
    steps: Steps


@once_per_trace
def outline(trace: Trace) -> Outline:
    """The outline of a trace."""
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
        steps=steps(trace),
    )


def head(trace: Trace) -> Trace:
    """The trace without its events but for the first, by time, and without what it knows of their lines."""
    return replace(trace, events=_first(trace.events), embedded="", lines=None)


def _first(events: Events) -> Events:
    at = int(np.argmin(events.ts))
    columns = {column.name: getattr(events, column.name) for column in fields(events)}
    own = {name: column[at : at + 1] for name, column in columns.items() if isinstance(column, np.ndarray)}
    return Events(
        strings=(),
        **own,
        messages=_none_of(events.messages),
        stacks=_none_of(events.stacks),
        allocations=_none_of(events.allocations),
        waits=_none_of(events.waits),
    )


def _none_of(table: T) -> T:
    """A table of columns without rows."""
    return type(table)(**{column.name: getattr(table, column.name)[:0] for column in fields(table)})
