"""Frames in which an nn.Module is called, as the profiler names them."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import matching
from traceq.model import Category, Trace

MODULE = re.compile(r"^nn\.Module: ")
"""Names of such frames: `nn.Module: Linear_3`."""


def module_frames(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of the calls of modules, on any thread."""
    rows = trace.events.rows(Category.PYTHON)
    frames: NDArray[np.int64] = rows[matching(trace.events, rows, MODULE)]
    return frames
