"""How large a trace will be, told before it is recorded: from the one step that was traced before it."""

from __future__ import annotations

from collections.abc import Sequence

from traceq.recorder.tracing.line_marks import PREFIX
from traceq.recorder.tracing.line_table import TraceRow
from traceq.units import Unit, format_value

__all__ = ["forecast_bytes", "forecast_words", "is_large"]

EVENT_BYTES = 450  # with shapes and arrows; 315 to 735 on real traces of many devices
PACKED = 16  # times smaller on disk
MOST_BYTES = 500_000_000


def forecast_bytes(rows: Sequence[TraceRow], num_steps: int) -> int:
    """Bytes of a plain trace of so many steps, by the events of the traced one: without its Python functions and its
    marks of lines, which the window leaves out.
    """
    kept = sum(row.ph == "X" and row.cat != "python_function" and not row.name.startswith(PREFIX) for row in rows)
    return kept * EVENT_BYTES * num_steps


def forecast_words(num_bytes: int, num_steps: int) -> str:
    """`a trace of 3 steps takes about 13.7 MiB a rank, 876 KiB packed`, and what to do if that is too much."""
    steps = f"{num_steps:,} step{'s' if num_steps > 1 else ''}"
    sizes = [format_value(size, Unit.BYTES) for size in (num_bytes, num_bytes // PACKED)]
    text = f"a trace of {steps} takes about {sizes[0]} a rank, {sizes[1]} packed"
    if not is_large(num_bytes):
        return text
    fewer = max(1, num_steps * MOST_BYTES // num_bytes)
    remedy = f"; --trace-steps {fewer} says as much" if fewer < num_steps else ""
    return f"{text}: writing and reading it takes minutes and memory{remedy}"


def is_large(num_bytes: int) -> bool:
    """More than anyone wants to wait for."""
    return num_bytes > MOST_BYTES
