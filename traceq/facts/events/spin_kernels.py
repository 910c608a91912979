"""Kernels that occupy their stream and only wait: for a time, or for a flag in memory.

A kernel that waits for another rank is communication, not one of these.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.communication_kernels import is_communication
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.memo import once_per_trace
from traceq.model import Category, Trace

__all__ = ["is_spin_wait"]

_SPINS = re.compile(
    r"^([^<(]|\(anonymous namespace\))*"  # not in template arguments
    r"(\b|(?<=\d))"  # in mangled names a length precedes
    r"((nano)?sleep_kernel|spin_kernel|(busy|spin)_wait\w{0,80})(?=[\s(<E]|$)",
)
"""torch's `spin_kernel` (`torch.cuda._sleep`) and `busy_wait_for_flag_kernel`, and names like theirs."""


@once_per_trace
def is_spin_wait(trace: Trace) -> NDArray[np.bool_]:
    """Return which device work only waits: bool[D], by its name."""
    work, events = device_work(trace), trace.events
    is_kernel = events.category[work.rows] == Category.KERNEL
    return np.asarray(is_kernel & ~is_communication(trace) & matching(events, work.rows, _SPINS))
