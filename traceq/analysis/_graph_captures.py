"""Host-bound time in which CUDA graphs are captured, which later steps do not have."""

from __future__ import annotations

from collections.abc import Sequence

from traceq.facts.stalls.graph_capture_times import capturing_ns
from traceq.facts.stalls.one_time_syncs import captured_words, num_captured_graphs
from traceq.frozen import frozen
from traceq.model import Trace
from traceq.units import Unit, format_value

__all__ = ["HostBoundCaptures", "capture_words", "host_bound_captures", "notable_capture_ns"]

_NOTABLE = 0.05
"""Part of the host-bound time from which that of captures is told."""


@frozen
class HostBoundCaptures:
    """Graphs that the counted steps capture, and ns of a mean one in which the device waits for a host that does."""

    num: int
    ns: float


def host_bound_captures(trace: Trace) -> HostBoundCaptures:
    """Return the graphs that the counted steps capture, and how long the device waits for that."""
    return HostBoundCaptures(num_captured_graphs(trace), capturing_ns(trace))


def notable_capture_ns(ranks: Sequence[HostBoundCaptures], host_bound_ns: float) -> float:
    """Return the host-bound ns of captures in a mean step, mean of ranks; 0 where that is little of all of it."""
    mean_ns = sum(rank.ns for rank in ranks) / max(len(ranks), 1)
    return mean_ns if mean_ns >= _NOTABLE * host_bound_ns else 0.0


def capture_words(ranks: Sequence[HostBoundCaptures], ns: float) -> str:
    """Return `for 44.9 ms of it the host prepares and captures a CUDA graph, once: trace later steps`."""
    graphs = captured_words(max(rank.num for rank in ranks))
    return f"for {format_value(ns, Unit.NS)} of it the host prepares and captures {graphs}, once: trace later steps"
