"""Sentence on CUDA graphs that one side alone replays: what its host saves by them, and whether that gains anything."""

from __future__ import annotations

import re
from collections.abc import Sequence

from traceq.compare.result import CellDelta, Traced
from traceq.facts.events.graph_replays import capture_spans
from traceq.facts.events.name_patterns import matching
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.intervals import measure_within, span_index, spans
from traceq.model import Category, Trace
from traceq.units import Unit, format_value

__all__ = ["replay_words"]

_REPLAY = re.compile(r"GraphLaunch")
_LAUNCH = re.compile(r"^(cuda|hip|cu)\w*Launch(Cooperative)?Kernel")
_FEWEST, _FEWER = 0.75, 0.75
"""Replays per step from which a side runs by graphs, and part of the other side's launches that it has left then."""
_NOTABLE, _BUSY = 0.01, 0.9
"""Parts of a step: from which time of the host is told, and of the device's computing that leaves it nothing to do."""
_COMPUTE = TimeCategory.COMPUTE.name.lower()


def replay_words(
    a: Trace,
    b: Trace,
    names: tuple[str, str],
    traced: Traced,
    cells: Sequence[CellDelta],
    *,
    timed: bool = True,
    is_seen: bool = True,
) -> tuple[str, ...]:
    """Return `B replays CUDA graphs (2 per step, A none): 15 kernel launches per step instead of 202, and ...`.

    That its host needs less time is said where durations are evidence (`timed`), and no graph is captured meanwhile;
    that this gains nothing, where no difference of the steps `is_seen` and the device of the other side computes all
    along.
    """
    traces = (a, b)
    nums = [_calls(trace, _REPLAY) for trace in traces]
    if traced.whole is not None or min(nums) > 0 or max(nums) < _FEWEST:
        return ()
    replaying = nums.index(max(nums))
    other = 1 - replaying
    num_launches = [_calls(trace, _LAUNCH) for trace in traces]
    if num_launches[replaying] > _FEWER * num_launches[other]:
        return ()
    launches = [format_value(num, Unit.MEAN) for num in num_launches]
    per, num = traced.per, format_value(nums[replaying], Unit.MEAN)
    what = f"{names[replaying]} replays CUDA graphs ({num} {per}, {names[other]} none)"
    counts = f"{launches[replaying]} kernel launches {per} instead of {launches[other]}"
    saved_ns = _host_ns(traces[other]) - _host_ns(traces[replaying])
    is_captured = any(len(capture_spans(trace)) for trace in traces)
    if not timed or is_captured or abs(saved_ns) < _NOTABLE * traced.a_ns:
        return (f"{what}: {counts}.",)
    needs = f"its host needs {format_value(abs(saved_ns), Unit.NS)} {'less' if saved_ns > 0 else 'more'} {per}"
    computing = sum((cell.b_ns if other else cell.a_ns) for cell in cells if cell.category == _COMPUTE)
    busy = computing / max(traced.b_ns if other else traced.a_ns, 1)
    gains = ""
    if saved_ns > 0 and not is_seen and busy >= _BUSY:
        percent = format_value(100 * busy, Unit.PERCENT)
        gains = f", which gains nothing: the device of {names[other]} computes for {percent} of its step"
    return (f"{what}: {counts}, and {needs}{gains}.",)


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
