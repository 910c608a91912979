"""The Python line that takes most of the time in which the main thread makes batches itself."""

from __future__ import annotations

import numpy as np

from traceq.facts.timeline.data_loading import own_batches
from traceq.facts.timeline.main_lines import main_lines
from traceq.frozen import frozen
from traceq.intervals import measure, measure_within
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
    ns[lines.line_at(loading[:, 0] - 1)] = 0  # that of the loop, which asks for the batch
    most = int(ns.argmax())
    return LoadingLine(lines.texts[most], 100 * float(ns[most]) / measure(loading)) if ns[most] else None
