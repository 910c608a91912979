"""Python lines of the main thread while it is in no op, by the table that a recording of traceq embeds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.nesting import host_ops
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.call_sites import declared_phases
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track, steps
from traceq.frozen import frozen
from traceq.grouping import group, ordinals
from traceq.intervals import Spans, empty, span_index
from traceq.model import Trace

_WHOLE = 100


@frozen(eq=False)
class LinesBetweenOps:
    """Times in no op with a known line: `parts` int64[M, 2] ns, sorted and disjoint; `line` int64[M] into `lines`."""

    lines: tuple[str, ...]
    parts: Spans
    line: NDArray[np.int64]

    def line_at(self, instants: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the line at each instant: int64[K], -1 where none is known."""
        index = span_index(self.parts, instants)
        return np.where(index >= 0, self.line[index] if len(self.line) else -1, -1)


@frozen(eq=False)
class _Gaps:
    """Times in no op after something that the table knows.

    `spans` int64[G, 2] ns; `key` int64[G]: what comes before; `ordinal` int64[G]: how often it came before in the step.
    """

    spans: Spans
    key: NDArray[np.int64]
    ordinal: NDArray[np.int64]


@once_per_trace
def lines_between_ops(trace: Trace) -> LinesBetweenOps:
    """Return the embedded lines at the times between ops of all steps, each cut in the proportions of its lines."""
    if trace.lines is None or not trace.lines.between or main_track(trace) not in host_ops(trace):
        return LinesBetweenOps((), empty(), np.empty(0, np.int64))
    table = trace.lines.between
    gaps = _gaps(trace, {key: number for number, key in enumerate(table)})
    num_times = np.array([len(times) for times in table.values()], np.int64)
    times = [parts for times in table.values() for parts in times]
    num_parts = np.array([len(parts) for parts in times], np.int64)
    entries = np.array([part for parts in times for part in parts], np.int64).reshape(-1, 2)
    until = np.cumsum(entries[:, 1])
    listed = np.flatnonzero(gaps.ordinal < num_times[gaps.key])
    time = (np.cumsum(num_times) - num_times)[gaps.key[listed]] + gaps.ordinal[listed]
    gap = np.repeat(np.arange(len(listed)), num_parts[time])
    first = (np.cumsum(num_parts) - num_parts)[time[gap]]
    entry = first + ordinals([gap])
    line, percent = entries[entry].T
    before = until[entry] - percent - (until[first] - entries[first, 1])
    start, end = gaps.spans[listed][gap].T
    parts = np.column_stack([start + (end - start) * edge // _WHOLE for edge in (before, before + percent)])
    is_named = np.array([bool(text) for text in trace.lines.lines], np.bool_)[line]
    order = np.argsort(parts[:, 0], kind="stable")
    order = order[is_named[order] & (parts[order, 1] > parts[order, 0])]
    return LinesBetweenOps(trace.lines.lines, parts[order], line[order])


def _gaps(trace: Trace, numbers: Mapping[str, int]) -> _Gaps:
    """Return the times after ops, phases and the begins of steps, up to the next of them; `numbers` of known keys."""
    ops, labels, host = host_ops(trace)[main_track(trace)], phases(trace), steps(trace).host
    names = declared_phases(trace)
    outermost = np.flatnonzero(ops.parent < 0)
    begin, end = ops.start[outermost], ops.end[outermost]
    timeline, label = (labels.main.parts, labels.main.label) if len(names) > 1 else (empty(), np.empty(0, np.int64))
    phase = labels.main_phase_at(begin) if len(names) > 1 else np.zeros_like(begin)
    distinct = group([phase, trace.events.name[ops.rows[outermost]]])
    keys = [f"{names[number]}|{trace.events.strings[name]}" for number, name in distinct.keys.tolist()]
    after_op = np.array([numbers.get(key, -1) for key in keys], np.int64)[distinct.group_ids]
    after_begin, after_end = (
        np.array([numbers.get(text.format(name), -1) for name in names], np.int64)[label] for text in ("{}|", "|{}")
    )
    edges = (  # of edges at the same time those that end something come first; an op without a duration is both
        (host[:, 1], 0, -1),
        (end, np.where(end > begin, 1, 4), after_op),
        (timeline[:, 1], 1, after_end),
        (host[:, 0], 1, numbers.get("|", -1)),
        (timeline[:, 0], 2, after_begin),
        (begin, 3, -1),
    )
    time = np.concatenate([times for times, _, _ in edges])
    order, key = (np.concatenate([np.broadcast_to(edge[column], len(edge[0])) for edge in edges]) for column in (1, 2))
    sequence = np.lexsort((order, time))
    time, key = time[sequence], key[sequence]
    ordinal = ordinals([np.searchsorted(host[:, 0], time, "right"), key])
    is_known = np.flatnonzero(key[:-1] >= 0)
    return _Gaps(np.column_stack([time[:-1], time[1:]])[is_known], key[is_known], ordinal[is_known])
