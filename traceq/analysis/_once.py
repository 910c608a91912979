"""Time that later steps do not have: host-bound in captures of CUDA graphs and first calls of ops, a cold start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.slow_first_calls import slow_first_calls
from traceq.facts.stalls.graph_capture_times import capturing_ns, graph_capture_times
from traceq.facts.stalls.one_time_syncs import captured_words, num_captured_graphs
from traceq.facts.timeline.cold_start import LEAST_COLD, cold_calls, cold_share
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.frozen import frozen
from traceq.intervals import Spans, intersect, measure, measure_common, spans, subtract
from traceq.model import Category, Trace
from traceq.units import Unit, format_value

__all__ = ["HostBoundOnce", "host_bound_once", "notable_once_ns", "ns_after_cold_start", "once_words"]

_NOTABLE, _NOTABLE_FIRST = 0.05, 0.25
"""Parts of the host-bound time from which that of captures, and that in first calls, is told."""
_NEARLY_ALL = 0.9


@frozen
class HostBoundOnce:
    """Graphs that the counted steps capture, and ns of a mean one in which the device waits for a host that does.

    `first_ns` likewise in first calls of ops outside of captures, of which it waits longest in that of `first_op`.
    """

    num_graphs: int
    capture_ns: float
    first_ns: float
    first_op: str


def host_bound_once(trace: Trace) -> HostBoundOnce:
    """Return how long the device waits for what the host does once in the counted steps."""
    windows = steps(trace).window[steps(trace).counted]
    bound = intersect(activity(trace).when(TimeCategory.HOST_BOUND), spans(*windows.T))
    bound = subtract(bound, graph_capture_times(trace))
    rows, events = slow_first_calls(trace), trace.events
    return HostBoundOnce(
        num_captured_graphs(trace),
        capturing_ns(trace),
        measure(intersect(bound, spans(events.ts[rows], events.end[rows]))) / len(windows),
        _longest_op(trace, rows, bound),
    )


def _longest_op(trace: Trace, rows: NDArray[np.int64], bound: Spans) -> str:
    """Return the op of the call with most of some time: of those inside each other the innermost with nearly all of it.

    Where work of the profiler, or a load of kernels, is most of that, `NAME (profiler overhead)`. "" without a call.
    """
    events = trace.events
    overhead = events.rows(Category.OVERHEAD)
    within = intersect(bound, spans(events.ts[rows], events.end[rows]))
    for name in events.names_among(overhead).tolist():
        selected = overhead[events.name[overhead] == name]
        if 2 * measure_common(within, spans(events.ts[selected], events.end[selected])) > measure(within):
            return f"{events.strings[name]} (profiler overhead)"
    waits = [measure_common(bound, spans(events.ts[[row]], events.end[[row]])) for row in rows.tolist()]
    longest = [row for row, ns in zip(rows.tolist(), waits, strict=True) if ns >= _NEARLY_ALL * max(waits)]
    return events.strings[events.name[min(longest, key=lambda row: events.dur[row])]] if longest else ""


def ns_after_cold_start(trace: Trace) -> dict[str, float]:
    """Return ns by category after the cold start, where the only counted step holds one and goes on; else nothing."""
    if int(steps(trace).counted.sum()) != 1 or cold_share(trace) < LEAST_COLD:
        return {}
    done, ends = activity(trace), trace.events.end[np.concatenate(cold_calls(trace))]
    chosen = in_counted_steps(trace) & (done.parts[:, 0] >= ends.max())
    ns = np.bincount(done.category[chosen], done.ns[chosen], len(TimeCategory))
    return {category.name.lower(): float(ns[category]) for category in TimeCategory if ns.any()}


def notable_once_ns(ranks: Sequence[HostBoundOnce], host_bound_ns: float) -> float:
    """Return the host-bound ns that a mean step has once, mean of ranks, without what is little of all of it."""
    return sum(_notable(ranks, host_bound_ns))


def _notable(ranks: Sequence[HostBoundOnce], host_bound_ns: float) -> tuple[float, float]:
    """Return the ns of (captures, first calls) of a mean step, mean of ranks; 0.0 for what is little of all."""
    capture_ns = sum(rank.capture_ns for rank in ranks) / max(len(ranks), 1)
    first_ns = sum(rank.first_ns for rank in ranks) / max(len(ranks), 1)
    return (
        capture_ns if capture_ns >= _NOTABLE * host_bound_ns else 0.0,
        first_ns if first_ns >= _NOTABLE_FIRST * host_bound_ns else 0.0,
    )


def once_words(ranks: Sequence[HostBoundOnce], host_bound_ns: float) -> str:
    """Return `for 44.9 ms of it the host prepares and captures a CUDA graph, once: trace later steps`.

    Or `for 5.10 ms of it the host is in first calls of ops, most in aten::cudnn_convolution`, or both; one at least is
    notable.
    """
    capture_ns, first_ns = _notable(ranks, host_bound_ns)
    words = []
    if capture_ns:
        graphs = captured_words(max(rank.num_graphs for rank in ranks))
        words.append(f"for {format_value(capture_ns, Unit.NS)} of it the host prepares and captures {graphs}")
    if first_ns:
        longest = max(ranks, key=lambda rank: rank.first_ns).first_op
        words.append(
            f"for {format_value(first_ns, Unit.NS)} of it the host is in first calls of ops, most in {longest}"
        )
    return f"{' and '.join(words)}, once: trace later steps"
