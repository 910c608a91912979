"""Python lines of the main thread, in its ops and between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.forward_ops import forward_op_at
from traceq.facts.events.nesting import host_ops, nest
from traceq.facts.events.recomputed_ops import is_recomputed_at
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.call_sites import origins, user_frames
from traceq.facts.timeline.lines_between_ops import lines_between_ops
from traceq.facts.timeline.steps import main_track, steps
from traceq.frozen import frozen
from traceq.intervals import Spans, contains, empty, sorted_unique, span_index, spans
from traceq.model import Trace

__all__ = ["MainLines", "differentiated_lines", "main_lines"]


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
