"""The Python line that takes most of the time in which the main thread makes batches itself."""

from __future__ import annotations

import numpy as np

from traceq.facts.events.nesting import host_ops
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.data_loading import own_batches
from traceq.facts.timeline.lines_between_ops import lines_between_ops
from traceq.facts.timeline.steps import main_track
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
    """Return the line of most of the time in loaders without workers; None where none is known.

    It counts outermost ops by their lines, and the time between ops by the table that a recording embeds.
    """
    loading = own_batches(trace)
    if not len(loading):
        return None
    main, between = main_track(trace), lines_between_ops(trace)
    ns: dict[str, int] = {}
    between_ns = np.zeros(len(between.lines), np.int64)
    np.add.at(between_ns, between.line, measure_within(loading, between.parts[:, 0], between.parts[:, 1]))
    for line, amount in zip(between.lines, between_ns.tolist(), strict=True):
        ns[line] = ns.get(line, 0) + amount
    if main in host_ops(trace):
        ops = host_ops(trace)[main]
        outermost = np.flatnonzero(ops.parent < 0)
        start, end = ops.start[outermost], ops.end[outermost]
        origin = origins(trace, np.full(len(outermost), main), start, end, innermost=outermost)
        ops_ns = np.zeros(len(origin.texts), np.int64)
        np.add.at(ops_ns, origin.line, measure_within(loading, start, end))
        for line, amount in zip(origin.texts, ops_ns.tolist(), strict=True):
            ns[line] = ns.get(line, 0) + amount
    ns.pop("", None)
    most = max(ns, key=lambda line: ns[line], default="")
    return LoadingLine(most, 100 * ns[most] / measure(loading)) if most and ns[most] else None
