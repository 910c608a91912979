"""What is known of one rank once its events are gone: who it is, when it ran, and its steps."""

from __future__ import annotations

from dataclasses import dataclass

from traceq.links.launches import device_work
from traceq.links.memo import once_per_trace
from traceq.links.steps import Steps, extent, steps
from traceq.model import Caveat, Trace

__all__ = ["Outline", "outline"]


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """One rank's trace without its events. `base_time_ns` + a time of it is absolute; `extent` (start, end) ns of all
    that host and device did; `has_device`: some device work is in it."""

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
