"""Outline of one rank: its trace without events: identity, time range and steps; and what outlines tell of a job.

A mean over ranks is one of the same steps only if all of them count these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np

from traceq.facts.events.device_work import PROFILER_STEP, device_work, lacks_device_rows
from traceq.facts.events.kernels import has_untold_ranks
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.events.unrecorded_work import launches_without_rows
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import Steps, extent, steps
from traceq.frozen import frozen
from traceq.intervals import measure_within, spans
from traceq.model import SIDE_TABLES, Category, Caveat, Events, Trace, select_rows

_WALL_CLOCK_NS = 10**18
_MAX_GAP_NS = 60 * 10**9
_COUNTERS = "cuda_profiler_range"
"""Category of the rows in which CUPTI's range profiler gives the counters of a kernel."""
_OF_PROFILER = re.compile(r"^torch/profiler/profiler\.py\(\d+\): ")


@frozen(eq=False)
class Outline:
    """One rank's trace without its events.

    `base_time_ns` + a time of the trace is absolute; `extent` (start, end) ns of all host and device events;
    `has_device`: the trace has device work; `lacks_device_rows`: the job has a device, but the trace not;
    `has_counters`: the profiler measured counters of the kernels; `is_foreign`: no event is of PyTorch's profiler;
    `is_empty`: none is an op, an annotation, Python or work of a device, but the profiler's own.
    `has_untold_ranks`: `world_size` is not told, and other ranks take part in its collectives. `lost_launches`: how
    many of how many launches of kernels have no row of the device; 0 of 0 without device work.
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
        is_empty=_is_empty(trace),
        has_untold_ranks=has_untold_ranks(trace),
        lost_launches=launches_without_rows(trace) if len(device_work(trace)) else (0, 0),
        steps=steps(trace),
    )


def _is_empty(trace: Trace) -> bool:
    """Return whether no program runs: the thread that runs the profiler is in no function but it and its callers."""
    events = trace.events
    marks, frames = events.rows(Category.CPU_OP, Category.ANNOTATION), events.rows(Category.PYTHON)
    if len(device_work(trace)) or not matching(events, marks, PROFILER_STEP).all():
        return False
    profilers = frames[matching(events, frames, _OF_PROFILER)]
    if len(profilers):
        frames = frames[np.isin(tracks(trace)[frames], tracks(trace)[profilers])]
    until = np.maximum(events.end[frames], events.ts[frames] + 1)  # some take no time
    return bool(measure_within(spans(events.ts[profilers], events.end[profilers]), events.ts[frames], until).all())


def head(trace: Trace) -> Trace:
    """Return the trace with only its first event by time, and without the lines of its events."""
    return replace(trace, events=_first_event(trace.events), embedded="", lines=None)


def _first_event(events: Events) -> Events:
    """Return the first event by time, without strings and tables."""
    index = int(np.argmin(events.ts))
    tables: dict[str, Any] = {name: select_rows(getattr(events, name), slice(0)) for name in SIDE_TABLES}
    return replace(select_rows(events, slice(index, index + 1)), strings=(), **tables)


def are_concurrent(ranks: Sequence[Outline]) -> bool:
    """Return whether the ranks ran at the same time: no gap of a minute between windows by the wall clock.

    Clocks that count from boot cannot be compared; such ranks count as concurrent.
    """
    start, end = (np.array([rank.extent[side] + rank.base_time_ns for rank in ranks]) for side in (0, 1))
    order = np.argsort(start)
    gaps = start[order][1:] - np.maximum.accumulate(end[order])[:-1]
    return bool((start < _WALL_CLOCK_NS).any() or (gaps < _MAX_GAP_NS).all())


def counted_names(steps: Steps) -> frozenset[str]:
    """Return the names of the steps that count."""
    return frozenset(compress(steps.names, steps.counted))


def uncommon_steps(ranks: Sequence[Outline]) -> frozenset[str]:
    """Return the names of steps that some ranks count, and others do not, as they have only a part of them.

    None where a rank would have no step left, where names of steps repeat, and of ranks that ran one after the other.
    """
    marked = [rank.steps for rank in ranks if rank.steps.marked and not rank.steps.labels]
    if len(marked) < 2 or not are_concurrent(ranks):
        return frozenset()
    counted = [counted_names(steps) for steps in marked]
    partial = {name for steps in marked for name in compress(steps.names, ~steps.counted)}
    uncommon = frozenset().union(*counted) & partial
    return uncommon if all(names - uncommon for names in counted) else frozenset()


def with_common_steps(traces: Iterable[Trace]) -> tuple[Trace, ...]:
    """Return the traces of the ranks of a job, which count the same steps.

    The same traces where one has a single event: it may be the head of one that is not in memory.
    """
    traces = tuple(traces)
    if len(traces) < 2 or any(len(trace.events) < 2 for trace in traces):
        return traces
    outlines = [outline(trace) for trace in traces]
    uncommon = uncommon_steps(outlines)
    return tuple(
        replace(trace, left_out=trace.left_out | uncommon) if uncommon & counted_names(each.steps) else trace
        for trace, each in zip(traces, outlines, strict=True)
    )
