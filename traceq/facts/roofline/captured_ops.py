"""Ops whose work replays of CUDA graphs do, of graphs that another window of the process captured."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_labels import captured_nodes
from traceq.facts.events.graph_replays import graph_replays
from traceq.facts.roofline.formulas import work_of
from traceq.facts.roofline.op_calls import parse_call
from traceq.facts.roofline.work import Work
from traceq.frozen import frozen
from traceq.model import Trace

__all__ = ["CapturedOps", "captured_ops"]


@frozen(eq=False)
class CapturedOps:
    """P ops of graphs of another window, and the pieces of time (U, in the order of DeviceWork) that do their work.

    `of_unit` int64[U]: the op of each piece, -1 without one; `call` int64[U]: which call of it was captured. `name`,
    `shapes` int64[P + 1] into `texts`, -1 = absent; `work` int64[P + 1] into `works`, -1 without a model. Their last
    elements, -1, are those of no op.
    """

    of_unit: NDArray[np.int64]
    call: NDArray[np.int64]
    name: NDArray[np.int64]
    shapes: NDArray[np.int64]
    work: NDArray[np.int64]
    texts: tuple[str, ...]
    works: tuple[Work, ...]


def captured_ops(trace: Trace, num_units: int) -> CapturedOps:
    """Return the ops of the nodes that device work runs; none where the trace has the captures itself."""
    strings, graphs = trace.events.strings, trace.captured
    none = np.full(1, -1)
    if graphs is None or not len(device_work(trace)):
        absent = np.full(num_units, -1)
        return CapturedOps(absent, absent, none, none, none, strings, ())
    node = np.where(graph_replays(trace).captured < 0, captured_nodes(trace), -1)
    calls = [parse_call(op.name, op.shapes, op.types, op.strides, op.inputs) for op in graphs.ops]
    models = [None if call is None else work_of(call) for call in calls]
    works = [model for model in models if model is not None]
    has_model = np.array([model is not None for model in models], np.bool_)
    has_shapes = np.array([op.shapes != "" for op in graphs.ops], np.bool_)
    place = len(strings) + 2 * np.arange(len(graphs.ops))
    return CapturedOps(
        of_unit=np.r_[graphs.op, -1][node],
        call=np.r_[graphs.call, -1][node],
        name=np.r_[place, none],
        shapes=np.r_[np.where(has_shapes, place + 1, -1), none],
        work=np.r_[np.where(has_model, np.cumsum(has_model) - 1, -1), none],
        texts=(*strings, *(text for op in graphs.ops for text in (op.name, op.shapes))),
        works=tuple(works),
    )
