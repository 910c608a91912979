"""Traces of torch.autograd.profiler without Kineto, as torch before 1.9 wrote them: ops that have no category."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traceq.model import Category, Caveat, Events

__all__ = ["with_ops_of_autograd"]

_HOST, _DEVICE = "CPU functions", "CUDA functions"
"""Names of the processes in such a trace."""


def with_ops_of_autograd(events: Events) -> tuple[Events, tuple[Caveat, ...]]:
    """Return the events with the category of ops where they are of such a trace, and what cannot be said of it.

    Its times on a device are those between two events around an op, of ops inside each other: none of a kernel.
    """
    if _HOST not in events.strings or (events.category != Category.OTHER).any():
        return events, ()
    pids = np.array([*(name == _HOST for name in events.strings), False])
    category = np.where(pids[events.pid], Category.CPU_OP, events.category).astype(events.category.dtype)
    device = "; the times of its ops on a device are left out" if _DEVICE in events.strings else ""
    text = f"written by torch.autograd.profiler without Kineto: it has ops alone{device}; record with torch.profiler"
    return replace(events, category=category), (Caveat("autograd_profiler", text),)
