"""CUDA graphs that one side alone replays: what its host saves by them, and whether that gains anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from traceq.claims.limits import NOTABLE
from traceq.compare.limits import BUSY_DEVICE, BY_GRAPHS, FEW_LAUNCHES
from traceq.compare.result import CellDelta, Traced
from traceq.compare.statement import Statement, state
from traceq.facts.events.graph_replays import capture_spans
from traceq.facts.events.name_patterns import matching
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.intervals import measure_within, span_index, spans
from traceq.model import Category, Trace

__all__ = ["graph_replays"]

_REPLAY = re.compile(r"GraphLaunch")
_LAUNCH = re.compile(r"^(cuda|hip|cu)\w*Launch(Cooperative)?Kernel")
_COMPUTE = TimeCategory.COMPUTE.name.lower()


def graph_replays(
    a: Trace, b: Trace, traced: Traced, cells: Sequence[CellDelta], *, timed: bool = True, is_seen: bool = True
) -> Iterator[Statement]:
    """Yield that one side replays CUDA graphs, with how many kernels each side launches, and what its host saves.

    That its host needs less time is said where durations are evidence (`timed`), and no graph is captured meanwhile;
    that this gains nothing, where no difference of the steps `is_seen` and the device of the other side computes all
    along.
    """
    traces = (a, b)
    nums = [_calls(trace, _REPLAY) for trace in traces]
    if traced.whole is not None or min(nums) > 0 or max(nums) < BY_GRAPHS:
        return
    replaying = nums.index(max(nums))
    other = 1 - replaying
    num_launches = [_calls(trace, _LAUNCH) for trace in traces]
    if num_launches[replaying] > FEW_LAUNCHES * num_launches[other]:
        return
    saved_ns = round(_host_ns(traces[other]) - _host_ns(traces[replaying]))
    is_captured = any(len(capture_spans(trace)) for trace in traces)
    has_host = timed and not is_captured and abs(saved_ns) >= NOTABLE * traced.a_ns
    computing = sum((cell.b_ns if other else cell.a_ns) for cell in cells if cell.category == _COMPUTE)
    busy = computing / max(traced.b_ns if other else traced.a_ns, 1)
    gains_nothing = has_host and saved_ns > 0 and not is_seen and busy >= BUSY_DEVICE
    yield state(
        "graph_replays",
        replaying_side="ab"[replaying],
        launching_side="ab"[other],
        replays_mean=nums[replaying],
        launches_mean=num_launches[replaying],
        other_launches_mean=num_launches[other],
        less_host_ns=saved_ns if has_host and saved_ns > 0 else None,
        more_host_ns=-saved_ns if has_host and saved_ns <= 0 else None,
        busy_pct=100 * busy if gains_nothing else None,
    )


def _calls(trace: Trace, pattern: re.Pattern[str]) -> float:
    """Return how often calls of the runtime match in a counted step."""
    counted = steps(trace).host[steps(trace).counted]
    rows = trace.events.rows(Category.RUNTIME)
    rows = rows[span_index(counted, trace.events.ts[rows]) >= 0]
    return float(matching(trace.events, rows, pattern).sum()) / len(counted)


def _host_ns(trace: Trace) -> float:
    """Return ns of a mean counted step in which the host does not wait in a sync."""
    begin, end = steps(trace).host[steps(trace).counted].T
    waits = syncs(trace)
    waited = measure_within(spans(waits.start, waits.start + waits.blocked), begin, end)
    return float((end - begin - waited).mean())
