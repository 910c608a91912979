"""Whether durations of traced steps are evidence, beside unprofiled ones."""

from __future__ import annotations

from traceq.compare.result import Traced
from traceq.stats import Comparison
from traceq.units import Unit, format_value

__all__ = ["doubt"]


def doubt(traced: Traced, comparison: Comparison | None, steps: Comparison | None) -> str:
    """Return why durations of the traced steps are no evidence; "" where they are.

    `comparison` is of samples where the sides differ in them, `steps` always of steps, as the traced delta is.
    """
    delta = format_value(traced.delta_ns, Unit.DELTA_NS)
    left_out = "trust which ops were added or removed, not their durations (--full)."
    if _is_outside(traced, steps):
        return f"The traced delta, {delta}, is outside the unprofiled 95 % CI: {left_out}"
    if steps is not None and steps.steps_apart and not _is_alike(traced.delta_ns, steps.delta_ns):
        unprofiled = format_value(steps.delta_ns, Unit.DELTA_NS)
        return f"The traced delta, {delta}, is not that of the unprofiled steps, {unprofiled}: {left_out}"
    if comparison is not None and comparison.unprofiled and not comparison.is_seen:
        if comparison.verdict.is_open:
            return f"The unprofiled steps do not decide, and the traced {delta} is no evidence by itself: {left_out}"
        return f"The unprofiled steps show no difference that the traced {delta} could explain: {left_out}"
    return ""


def _is_outside(traced: Traced, steps: Comparison | None) -> bool:
    if steps is None or not steps.unprofiled or steps.ci95_ns is None:
        return False
    low, high = steps.ci95_ns
    return not low <= traced.delta_ns <= high


def _is_alike(traced_ns: int, unprofiled_ns: int) -> bool:
    """Return whether one is at most twice the other."""
    low, high = sorted((traced_ns, unprofiled_ns), key=abs)
    return low * high > 0 and 2 * abs(low) >= abs(high)
