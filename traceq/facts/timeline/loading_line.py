"""The Python line that takes most of the time in which the main thread makes batches itself."""

from __future__ import annotations

import numpy as np

from traceq.facts.timeline.call_sites import line_function
from traceq.facts.timeline.data_loading import own_batches
from traceq.facts.timeline.main_lines import MainLines, main_lines
from traceq.frozen import frozen
from traceq.intervals import Spans, measure, measure_within
from traceq.model import Trace

__all__ = ["LoadingLine", "loading_line"]


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
