"""Forecast of a trace's size, from the single step that is traced before it."""

from __future__ import annotations

from collections.abc import Sequence

from traceq.recorder.tracing.line_marks import PREFIX
from traceq.recorder.tracing.line_table import TraceRow
from traceq.units import Unit, format_value

__all__ = ["forecast_bytes", "forecast_text", "is_large"]

EVENT_BYTES = 450  # with shapes and arrows; 315 to 735 on real traces of many devices
COMPRESSION = 16  # typical ratio of gzip
LARGE_BYTES = 500_000_000


def forecast_bytes(rows: Sequence[TraceRow], num_steps: int) -> int:
    """Return the uncompressed size of a trace of `num_steps` steps, from the events of a single traced step.

    Its Python functions and line marks do not count: the window does not record them.
    """
    num_events = sum(row.ph == "X" and row.cat != "python_function" and not row.name.startswith(PREFIX) for row in rows)
    return num_events * EVENT_BYTES * num_steps


def forecast_text(num_bytes: int, num_steps: int) -> str:
    """Return `a trace of 3 steps takes about 13.7 MiB per rank, 876 KiB compressed`, with a remedy if it is large."""
    steps = f"{num_steps:,} step{'s' if num_steps > 1 else ''}"
    sizes = [format_value(size, Unit.BYTES) for size in (num_bytes, num_bytes // COMPRESSION)]
    text = f"a trace of {steps} takes about {sizes[0]} per rank, {sizes[1]} compressed"
    if not is_large(num_bytes):
        return text
    fewer = max(1, num_steps * LARGE_BYTES // num_bytes)
    remedy = f"; --trace-steps {fewer} usually suffices" if fewer < num_steps else ""
    return f"{text}; writing and reading it takes minutes and much memory{remedy}"


def is_large(num_bytes: int) -> bool:
    """Return True for traces that take minutes to write and to read."""
    return num_bytes > LARGE_BYTES
