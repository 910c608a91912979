"""CUDA graphs that a process captured in one window and replays in another, as inference engines do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.graph_replays import captures, graph_replays
from traceq.facts.events.nesting import tracks
from traceq.facts.roofline.owning_ops import op_of_calls
from traceq.facts.timeline.modules import modules, modules_at
from traceq.model import CapturedGraphs, CapturedOp, Trace

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
    graphs = CapturedGraphs(
        size=np.concatenate([part.size for part in parts]),
        module=_renumbered([(part.module, len(part.names)) for part in parts]),
        op=_renumbered([(part.op, len(part.ops)) for part in parts]),
        call=_renumbered([(part.call, int(part.call.max(initial=-1)) + 1) for part in parts]),
        names=tuple(name for part in parts for name in part.names),
        ops=tuple(op for part in parts for op in part.ops),
        in_turn=all(part.in_turn for part in parts),
        paths=tuple(path for part in parts for path in part.paths),
    )
    return replace(trace, captured=graphs)


def _renumbered(parts: Sequence[tuple[NDArray[np.int64], int]]) -> NDArray[np.int64]:
    """Return the numbers of all parts, each with as many of its own, -1 for none: those of a part follow the others."""
    first = np.cumsum([0, *(num for _, num in parts)])
    return np.concatenate(
        [np.where(number >= 0, number + offset, -1) for (number, _), offset in zip(parts, first.tolist(), strict=False)]
    )


def _captured(window: Trace) -> CapturedGraphs:
    """Return the graphs that a window captured, each node with the module that launched it and the op of its work."""
    recorded = captures(window)
    module = modules_at(window, tracks(window)[recorded.rows], window.events.ts[recorded.rows])
    rows, call = np.unique(op_of_calls(window, recorded.rows), return_inverse=True)
    ops: dict[CapturedOp, int] = {}
    number = [ops.setdefault(_op(window, row), len(ops)) if row >= 0 else -1 for row in rows.tolist()]
    return CapturedGraphs(
        size=recorded.size,
        module=module,
        op=np.array(number, np.int64)[call],
        call=call.astype(np.int64),
        names=modules(window).paths,
        ops=tuple(ops),
        in_turn=recorded.in_turn,
        paths=(window.path,),
    )


def _op(window: Trace, row: int) -> CapturedOp:
    """Return an op as its row of Events describes it."""
    events, strings = window.events, (*window.events.strings, "")
    columns = (events.name, events.shapes, events.types, events.strides, events.inputs)
    return CapturedOp(*(strings[int(column[row])] for column in columns))
