"""CUDA graphs that a process captured in one window and replays in another, as inference engines do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traceq.facts.events.graph_replays import captures, graph_replays
from traceq.facts.events.nesting import tracks
from traceq.facts.timeline.modules import modules, modules_at
from traceq.model import CapturedGraphs, Trace

__all__ = ["with_captured_graphs"]


def with_captured_graphs(trace: Trace, earlier: Sequence[Trace]) -> Trace:
    """Return the trace with the graphs that earlier windows captured, if it replays graphs that it did not capture.

    Windows that are not in memory, as those of large folders, are left out.
    """
    earlier = [window for window in earlier if window.events.strings]
    if not earlier or not trace.events.strings:
        return trace
    replays = graph_replays(trace)
    if not (replays.replayed & (replays.captured < 0)).any():
        return trace
    parts = [part for part in map(_captured, earlier) if len(part.size)]
    if not parts:
        return trace
    first = np.cumsum([0, *(len(part.names) for part in parts)])
    module = [
        np.where(part.module >= 0, part.module + offset, -1) for part, offset in zip(parts, first[:-1], strict=True)
    ]
    graphs = CapturedGraphs(
        size=np.concatenate([part.size for part in parts]),
        module=np.concatenate(module),
        names=tuple(name for part in parts for name in part.names),
        in_turn=all(part.in_turn for part in parts),
        paths=tuple(path for part in parts for path in part.paths),
    )
    return replace(trace, captured=graphs)


def _captured(window: Trace) -> CapturedGraphs:
    """Return the graphs that a window captured, each node with the module that launched it."""
    recorded = captures(window)
    module = modules_at(window, tracks(window)[recorded.rows], window.events.ts[recorded.rows])
    return CapturedGraphs(recorded.size, module, modules(window).paths, recorded.in_turn, (window.path,))
