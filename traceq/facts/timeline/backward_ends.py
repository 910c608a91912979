"""The end of a backward pass that autograd's ops do not show: DDP waits there for the gradients of other ranks."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.communication_kernels import COMMUNICATION_ROW
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.timeline.steps import main_track
from traceq.intervals import Spans, ascending, spans, union
from traceq.model import Category, Trace

__all__ = ["backward_calls", "with_ends"]

_CALL = re.compile(r"^<built-in method run_backward of ")
_REDUCED = re.compile(r"^(torch\.distributed\.ddp\.reducer::copy_bucket_to_grad|FSDP::root_post_backward_callback)$")
"""What DDP and FSDP do last in a pass, before `backward()` returns: gradients of the last layers are reduced."""


def backward_calls(trace: Trace) -> Spans:
    """Return when the main thread runs backward passes, where Python's frames are recorded."""
    rows = _on_main(trace, trace.events.rows(Category.PYTHON), _CALL)
    return spans(trace.events.ts[rows], trace.events.end[rows])


def with_ends(trace: Trace, passes: Spans, begun: NDArray[np.int64]) -> Spans:
    """Return the backward passes with their ends: while a collective that began in one runs, and the main thread waits.

    `begun` int64[M]: starts of all else that the main thread does, ascending. DDP ends the pass with copies of the
    gradients, where these are no views of its buckets, and FSDP with a callback.
    """
    if not len(passes):
        return passes
    events, never = trace.events, np.iinfo(np.int64).max
    marks = events.rows(Category.ANNOTATION, Category.CPU_OP)
    comm = marks[matching(events, marks, COMMUNICATION_ROW)]
    comm = comm[tracks(trace)[comm] != main_track(trace)]
    goes_on = np.r_[begun, never][np.searchsorted(begun, passes[:, 1])]
    index = np.searchsorted(passes[:, 0], events.ts[comm], "right") - 1
    is_of_pass = (index >= 0) & (events.ts[comm] < goes_on[index])
    end = passes[:, 1].copy()
    np.maximum.at(end, index[is_of_pass], np.minimum(events.end[comm], goes_on[index])[is_of_pass])
    passes = spans(passes[:, 0], end)
    copies = _on_main(trace, marks, _REDUCED)
    index = np.searchsorted(passes[:, 1], events.ts[copies], "right") - 1
    annotations = events.rows(Category.ANNOTATION)
    annotated = ascending(events.ts[annotations[tracks(trace)[annotations] == main_track(trace)]])
    since = passes[index, 1]
    follows = (index >= 0) & (np.searchsorted(annotated, since) == np.searchsorted(annotated, events.ts[copies]))
    return union(passes, spans(since[follows], events.end[copies[follows]]))


def _on_main(trace: Trace, rows: NDArray[np.int64], pattern: re.Pattern[str]) -> NDArray[np.int64]:
    rows = rows[matching(trace.events, rows, pattern)]
    return np.asarray(rows[tracks(trace)[rows] == main_track(trace)])
