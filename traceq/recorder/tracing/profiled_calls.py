"""Trace of a function that is called under the profiler in this process, with the Python line of each event."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from traceq.model import Category, Trace
from traceq.recorder.spec.phases import Phases
from traceq.recorder.tracing.line_marks import PREFIX
from traceq.recorder.tracing.profiler_window import Window, profiled_steps
from traceq.runs.read import read

__all__ = ["profiled_calls"]

_MARK = re.compile(rf"^{PREFIX}\d+ (?P<file>.*):(?P<line>\d+) (?P<function>.*)$")


def profiled_calls(function: Callable[[], object], num_calls: int, path: Path) -> Trace:
    """Return the trace of `num_calls` calls after two warm-up calls; it is also written to `path`.

    Every line of user code is marked: counts and lines are exact, durations include the overhead of the marks.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with closing(profiled_steps(Window(path, num_calls, marks=True), device, Phases())) as calls:
        for _ in calls:
            function()
    (trace,) = read(path, strict=True).traces
    return _with_frames(trace)


def _with_frames(trace: Trace) -> Trace:
    """Return the trace with each mark as a Python frame until the next mark; all marks are on one thread."""
    events = trace.events
    frames = [_MARK.sub(r"\g<file>(\g<line>): \g<function>", text) for text in events.strings]
    is_mark = np.array([bool(_MARK.match(text)) for text in events.strings], np.bool_)
    rows = np.flatnonzero(is_mark[events.name])
    rows = rows[np.argsort(events.ts[rows], kind="stable")]
    category, dur = events.category.copy(), events.dur.copy()
    category[rows] = Category.PYTHON
    dur[rows] = np.diff(events.ts[rows], append=events.end.max())
    return replace(trace, events=replace(events, strings=tuple(frames), category=category, dur=dur))
