"""Rows of torch.compile at work: the ranges in which it compiles, and all that a thread does inside one.

Compiling runs the program on fake tensors, backward included: thousands of rows that look like its ops and modules.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traceq.intervals import span_index, spans
from traceq.model import Category, Events

__all__ = ["with_compile_ranges"]

_RANGES = ("dynamo", "entire_frame_compile", "entire_backward_compile")
"""Names, in newer versions of torch, of the ranges around those of `dynamo_timed`."""
_TIMED = " (dynamo_timed)"
"""End of the names of `torch._dynamo.utils.dynamo_timed`, since torch 2.0."""


def with_compile_ranges(events: Events) -> Events:
    """Return the events with the category of compiling for these rows; calls of a device's runtime keep theirs."""
    host = events.rows(Category.CPU_OP, Category.ANNOTATION)
    names = events.names_among(host).tolist()
    named = [name for name in names if events.strings[name] in _RANGES or events.strings[name].endswith(_TIMED)]
    if not named:
        return events
    ranges = host[np.isin(events.name[host], named)]
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION, Category.PYTHON)
    category = events.category.copy()
    for pid, tid in set(zip(events.pid[ranges].tolist(), events.tid[ranges].tolist(), strict=True)):
        of_thread = (events.pid == pid) & (events.tid == tid)
        around, inside = ranges[of_thread[ranges]], rows[of_thread[rows]]
        parts = spans(events.ts[around], events.end[around])
        index = span_index(parts, events.ts[inside])
        is_inside = (index >= 0) & (events.end[inside] <= parts[index, 1])  # not what begins with a range, and goes on
        category[inside[is_inside]] = Category.COMPILING
    return replace(events, category=category)
