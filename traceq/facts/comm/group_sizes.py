"""Ranks of the group of each collective call: as recorded, by the shapes of its `c10d` op, or as all groups have."""

from __future__ import annotations

import json
import re
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import nest, tracks
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

__all__ = ["group_sizes"]

_GATHERS = re.compile(r"^c10d::_?all_?gather")
_SCATTERS = re.compile(r"^c10d::_?reduce_?scatter")


def group_sizes(trace: Trace, issued: NDArray[np.int64], message: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[C] ranks, -1 where the trace does not tell; never those of the world by assumption.

    `issued` int64[C] rows of the calls on the issuing thread, `message` int64[C] into Messages. The output of an
    all-gather is that many times its input, the input of a reduce-scatter that many times its output.
    """
    recorded = trace.events.messages.group_size
    sizes = np.where(message >= 0, recorded[message], -1) if len(recorded) else np.full(len(issued), -1)
    unknown = np.flatnonzero(sizes <= 0)
    sizes[unknown] = _by_shapes(trace, _dispatched(trace, issued[unknown]))
    return np.where(sizes > 0, sizes, trace.group_size)


def _dispatched(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of the innermost `c10d` op that gathers or scatters around each row, or is it; -1 without one."""
    events, row_track = trace.events, tracks(trace)
    ops = events.rows(Category.CPU_OP)
    ops = ops[matching(events, ops, _GATHERS) | matching(events, ops, _SCATTERS)]
    around = np.full(len(rows), -1)
    for track in sorted_unique(row_track[rows]).tolist():
        on_track, ops_on_track = np.flatnonzero(row_track[rows] == track), ops[row_track[ops] == track]
        if len(ops_on_track):
            nested = nest(events, ops_on_track)
            index = nested.innermost_at(events.ts[rows[on_track]])
            around[on_track] = np.where(index >= 0, nested.rows[index], -1)
    return around


def _by_shapes(trace: Trace, ops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[K] ranks by the shapes of `c10d` ops, rows of Events or -1; -1 where they do not tell."""
    events = trace.events
    scatters = matching(events, np.maximum(ops, 0), _SCATTERS) if len(ops) else np.zeros(0, np.bool_)
    shapes = np.where(ops >= 0, events.shapes[ops], -1)
    by_text = {text: _ratio(events.strings[text]) for text in sorted_unique(shapes).tolist() if text >= 0}
    outputs = np.array([by_text.get(text, (0, 0)) for text in shapes.tolist()], np.int64).reshape(-1, 2)
    large = np.where(scatters, outputs[:, 1], outputs[:, 0])
    small = np.where(scatters, outputs[:, 0], outputs[:, 1])
    divides = (small > 0) & (large >= small)
    sizes = np.where(divides, large // np.maximum(small, 1), -1)
    return np.where(divides & (sizes * small == large), sizes, -1)


def _ratio(shapes: str) -> tuple[int, int]:
    """Return the elements of the first and of the second input of `[[1024], [16], []]`; (0, 0) if that is not it."""
    try:
        inputs = json.loads(shapes)
        return _elements(inputs[0]), _elements(inputs[1])
    except (ValueError, TypeError, IndexError, RecursionError):
        return 0, 0


def _elements(shape: Any) -> int:
    """Return the number of elements of a shape, or of a list of shapes."""
    if any(isinstance(part, list) for part in shape):
        return sum(_elements(part) for part in shape)
    return prod(map(int, shape)) if shape else 0
