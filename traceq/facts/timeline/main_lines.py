"""Python lines of the host: in the main thread's ops and between them, of launches, and of making batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.forward_ops import forward_op_at, is_recomputed_at
from traceq.facts.events.nesting import host_ops, nest, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.active_thread import active_thread, launching_threads
from traceq.facts.timeline.call_sites import line_function, origins, user_frames
from traceq.facts.timeline.data_loading import own_batches
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.python_places import lines_between_ops
from traceq.facts.timeline.steps import main_track, steps
from traceq.frozen import frozen
from traceq.intervals import Spans, contains, empty, measure, measure_within, sorted_unique, span_index, spans
from traceq.model import Trace


@frozen(eq=False)
class MainLines:
    """Lines over time in the steps: `parts` int64[M, 2] ns, sorted and disjoint; `line` int64[M] into `texts`.

    The first text is "", of time without a known line.
    """

    texts: tuple[str, ...]
    parts: Spans
    line: NDArray[np.int64]

    def line_at(self, instants: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the line at each instant: int64[K], 0 where none is known."""
        index = span_index(self.parts, instants)
        return np.where(index >= 0, self.line[index] if len(self.line) else 0, 0)


@once_per_trace
def main_lines(trace: Trace) -> MainLines:
    """Return the line of the innermost user frame, else that of the outermost op around, else the one between ops.

    That is the line of the user that waits while other threads run the backward pass. Nothing without recorded lines.
    """
    track, between, frames = main_track(trace), lines_between_ops(trace), user_frames(trace)
    if not (len(frames) or trace.lines is not None or len(trace.events.stacks.row)):
        return MainLines(("",), empty(), np.empty(0, np.int64))
    host, of_frames, ops = steps(trace).host, nest(trace.events, frames), host_ops(trace).get(track)
    outermost = np.empty((2, 0), np.int64) if ops is None else np.stack([ops.start, ops.end])[:, ops.parent < 0]
    edges = sorted_unique(host.ravel(), of_frames.start, of_frames.end, outermost.ravel(), between.parts.ravel())
    parts = np.column_stack([edges[:-1], edges[1:]])
    parts = parts[contains(spans(*host.T), parts[:, 0])]
    origin = origins(trace, np.full(len(parts), track), parts[:, 0], parts[:, 1])
    listed = between.line_at(parts[:, 0])
    line = np.where((origin.line == 0) & (listed >= 0), len(origin.texts) + listed, origin.line)
    texts, used, numbers = (*origin.texts, *between.lines), sorted_unique(line), {"": 0}
    number = np.array([numbers.setdefault(texts[index], len(numbers)) for index in used.tolist()], np.int64)
    return MainLines(tuple(numbers), parts, number[np.searchsorted(used, line)])


def differentiated_lines(trace: Trace, track: NDArray[np.int64], instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the line of the forward op of the backward op at each instant of a thread: int64[K], 0 without one.

    The line of a backward pass is one for all of it, `loss.backward()`; what its ops differentiate are many. What a
    node recomputes is none of that: it runs the lines of the forward pass again.
    """
    forward = np.where(is_recomputed_at(trace, track, instants), -1, forward_op_at(trace, track, instants))
    return np.where(forward >= 0, main_lines(trace).line_at(trace.events.ts[forward]), 0)


@frozen(eq=False)
class _LineParts:
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
def line_parts(trace: Trace) -> _LineParts:
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
    return _LineParts(start, ns, labels.main_phase_at(start), line, op, op_start == start)


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
    for ops, which in host_ops(trace).on(track):
        index = ops.innermost_at(instants[which])
        which, row = which[index >= 0], ops.rows[ops.outermost()[index[index >= 0]]]
        name[which], start[which] = trace.events.name[row], trace.events.ts[row]
    return name, start


def _ops_of_others(trace: Trace) -> Iterator[NDArray[np.int64]]:
    """Yield when the outermost ops of launching threads but the main one start and end: int64[K]."""
    for track in launching_threads(trace)[1:]:
        if (ops := host_ops(trace).get(track)) is not None:
            yield np.r_[ops.start[ops.parent < 0], ops.end[ops.parent < 0]]


@frozen
class LoadingLine:
    """A line, `train.py:17 __getitem__`, and its share of the time in percent."""

    line: str
    share_pct: float


def loading_line(trace: Trace) -> LoadingLine | None:
    """Return the line of most of the time in loaders without workers, inside of them; None where none is known.

    By Python's frames where these are recorded, else by the lines of outermost ops, and between them by the table
    that a recording embeds.
    """
    loading, lines = own_batches(trace), main_lines(trace)
    if not len(loading):
        return None
    ns = np.bincount(lines.line, measure_within(loading, *lines.parts.T), len(lines.texts))
    ns[0] = 0  # no known line
    ns[_of_loop(lines, loading)] = 0
    most = int(ns.argmax())
    return LoadingLine(lines.texts[most], 100 * float(ns[most]) / measure(loading)) if ns[most] else None


def _of_loop(lines: MainLines, loading: Spans) -> list[int]:
    """Return the lines of the loop that asks for the batch, and goes on with it once it has it.

    Before it asks, what runs between two ops may already be the loader: only the function tells that.
    """
    before, behind = set(lines.line_at(loading[:, 0] - 1).tolist()), set(lines.line_at(loading[:, 1]).tolist())
    functions = {line_function(lines.texts[line]) for line in behind}
    return [*behind, *(line for line in before if line_function(lines.texts[line]) in functions)]
