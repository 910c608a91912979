"""Whether a trace was recorded with the shapes of its ops."""

from __future__ import annotations

from traceq.model import Category, Trace

__all__ = ["has_shapes", "lacks_shapes"]


def has_shapes(trace: Trace) -> bool:
    """Return whether the shapes of the inputs of any op were recorded."""
    return bool((trace.events.shapes[trace.events.rows(Category.CPU_OP)] >= 0).any())


def lacks_shapes(trace: Trace) -> bool:
    """Return whether ops were recorded, none of them with shapes."""
    return len(trace.events.rows(Category.CPU_OP)) > 0 and not has_shapes(trace)
