"""Waits of the main thread for an autograd thread whose rows the trace lacks, as it lacks those of the device."""

from __future__ import annotations

import re

import numpy as np

from traceq.facts.events.device_work import lacks_device_rows
from traceq.facts.events.name_patterns import matching
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.phases import phases
from traceq.intervals import Spans, empty, spans
from traceq.model import Category, Trace

__all__ = ["unrecorded_backward"]

_PHASE = re.compile(r"^(?!.*(forward|fwd)).*(backward|\bbwd)", re.IGNORECASE)
_BACKWARD_OP = re.compile(r"Backward[0-9]*$")


@once_per_trace
def unrecorded_backward(trace: Trace) -> Spans:
    """Return the backward phases of the main thread if no thread has their ops: int64[N, 2] ns.

    Ops of devices run backward on a thread of the engine, for which the main thread waits. Recorded stacks show that.
    """
    events = trace.events
    ops = events.rows(Category.CPU_OP)
    runs_backward = bool(matching(events, ops, _BACKWARD_OP).any() or (events.forward_thread[ops] > 0).any())
    if not lacks_device_rows(trace) or runs_backward or len(events.rows(Category.PYTHON)):
        return empty()
    labels = phases(trace)
    is_backward = np.array([bool(_PHASE.search(name)) for name in labels.names])
    return spans(*labels.main.parts[is_backward[labels.main.label]].T)
