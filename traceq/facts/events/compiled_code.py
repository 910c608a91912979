"""Code of torch.compile: its regions on the host and its kernels on the device."""

from __future__ import annotations

import re

import numpy as np

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.memo import once_per_trace
from traceq.model import Category, Trace

__all__ = ["COMPILED", "runs_compiled"]

COMPILED = re.compile(r"Torch-Compiled Region|CompiledFxGraph|TorchDynamo|^CompiledFunction(Backward)?$|^triton_")
"""Names of its regions, of the autograd nodes around them, and of the kernels that Inductor generates."""


@once_per_trace
def runs_compiled(trace: Trace) -> bool:
    """Return whether any of the trace's work is compiled."""
    rows = np.r_[trace.events.rows(Category.ANNOTATION, Category.CPU_OP), device_work(trace).rows]
    return bool(matching(trace.events, rows, COMPILED).any())
