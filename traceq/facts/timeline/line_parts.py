"""Host time of the counted steps, cut where the line, the phase or the outermost op changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import host_ops, op_nests, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.active_thread import active_thread, launching_threads
from traceq.facts.timeline.main_lines import differentiated_lines, main_lines
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import contains, sorted_unique, spans
from traceq.model import Trace

__all__ = ["LineParts", "line_parts", "lines_of_work", "outermost_ops"]


@frozen(eq=False)
class LineParts:
    """P parts of the host's time, in order.

    `start`, `ns` int64[P]; `phase` int64[P] into the names of `phases`; `line` int64[P] into the texts of `main_lines`,
    in a backward op that of its forward op; `op` int64[P] the name of the outermost op on the active thread, -1 between
    ops; `begins_op` bool[P].
    """

    start: NDArray[np.int64]
    ns: NDArray[np.int64]
    phase: NDArray[np.int64]
    line: NDArray[np.int64]
    op: NDArray[np.int64]
    begins_op: NDArray[np.bool_]


@once_per_trace
def line_parts(trace: Trace) -> LineParts:
    """Return the parts of the counted steps; their times add up to those of the host's steps."""
    lines, labels = main_lines(trace), phases(trace)
    counted = steps(trace).host[steps(trace).counted]
    edges = sorted_unique(lines.parts.ravel(), labels.main.parts.ravel(), counted.ravel(), *_ops_of_others(trace))
    inside = contains(spans(*counted.T), edges[:-1])
    start, ns = edges[:-1][inside], np.diff(edges)[inside]
    active = active_thread(trace, start).track
    op, op_start = outermost_ops(trace, active, start)
    differentiated = differentiated_lines(trace, active, start)
    line = np.where(differentiated > 0, differentiated, lines.line_at(start))
    return LineParts(start, ns, labels.main_phase_at(start), line, op, op_start == start)


@once_per_trace
def lines_of_work(trace: Trace) -> NDArray[np.int64]:
    """Return the line that launched each piece of device work, in a backward op that of its forward op: int64[D].

    Into the texts of `main_lines`; 0 where it is not known.
    """
    work, line = device_work(trace), np.zeros(len(device_work(trace)), np.int64)
    calls = work.call[work.linked]
    at_launch = trace.events.ts[calls]
    differentiated = differentiated_lines(trace, tracks(trace)[calls], at_launch)
    line[work.linked] = np.where(differentiated > 0, differentiated, main_lines(trace).line_at(at_launch))
    return line


def outermost_ops(
    trace: Trace, track: NDArray[np.int64], instants: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return int64[K]: (the name of the outermost op on a thread at a time, -1 for none; when it starts, -1)."""
    name, start = np.full(len(instants), -1), np.full(len(instants), -1)
    for part in op_nests(trace).on(track):
        index = part.innermost_at(instants[part.which])
        which, row = part.which[index >= 0], part.nest.rows[part.nest.outermost()[index[index >= 0]]]
        name[which], start[which] = trace.events.name[row], trace.events.ts[row]
    return name, start


def _ops_of_others(trace: Trace) -> Iterator[NDArray[np.int64]]:
    """Yield when the outermost ops of launching threads but the main one start and end: int64[K]."""
    for track in launching_threads(trace)[1:]:
        if (ops := host_ops(trace).get(track)) is not None:
            yield np.r_[ops.start[ops.parent < 0], ops.end[ops.parent < 0]]
