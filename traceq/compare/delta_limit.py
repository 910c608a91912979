"""A limit on how much longer B's step may be than A's: `traceq diff A B --fail-on-delta 5%`."""

from __future__ import annotations

from enum import StrEnum

from traceq.compare.result import Diff
from traceq.errors import Unanswerable
from traceq.frozen import frozen
from traceq.stats import Comparison
from traceq.stats.verdict import PROCESSES, STEPS
from traceq.units import Unit, format_value

__all__ = ["DeltaOutcome", "DeltaState", "judge_delta"]


class DeltaState(StrEnum):
    """Whether B's step is longer by more than the limit."""

    EXCEEDED = "exceeded"
    KEPT = "kept"
    UNDECIDED = "undecided"


@frozen
class DeltaOutcome:
    """State of a limit, and one sentence that says so and what it rests on."""

    state: DeltaState
    text: str


def judge_delta(diff: Diff, limit_pct: float) -> DeltaOutcome:
    """Return whether B's step, or the time per sample, is longer than A's by more than `limit_pct` percent of it.

    Where there is an interval of unprofiled steps all of it has to be on one side of the limit. Without one the
    estimate decides. Raises Unanswerable where there is nothing to compare.
    """
    comparison = diff.comparison
    if comparison is None or not diff.comparable.ok or not comparison.a_ns:
        raise Unanswerable(diff.answer.lead)
    low, high = (_percent(ns, comparison) for ns in comparison.ci95_ns or (comparison.delta_ns, comparison.delta_ns))
    state = DeltaState.KEPT if high <= limit_pct else DeltaState.EXCEEDED if low > limit_pct else DeltaState.UNDECIDED
    if state is DeltaState.EXCEEDED and comparison.ci95_ns and comparison.verdict.is_open:
        state = DeltaState.UNDECIDED  # the interval excludes 0, and yet there is no verdict: the A/A control differs
    takes = {
        DeltaState.EXCEEDED: f"{diff.b_name} takes more than",
        DeltaState.KEPT: f"{diff.b_name} takes at most",
        DeltaState.UNDECIDED: f"not decided whether {diff.b_name} takes more than",
    }
    limit = f"{format_value(limit_pct, Unit.PERCENT)} longer than {diff.a_name}"
    return DeltaOutcome(state, f"{takes[state]} {limit}: {_basis(comparison, low, high)}")


def _basis(comparison: Comparison, low: float, high: float) -> str:
    """Return what a decision rests on."""
    per = "per sample" if comparison.samples else "per step"
    least, most = (format_value(pct, Unit.DELTA_PERCENT) for pct in (low, high))
    if comparison.ci95_ns:
        return f"{least} to {most} {per}, the 95 % interval of unprofiled steps"
    nums = " and ".join(f"{num:,}" for num in dict.fromkeys((comparison.num_a, comparison.num_b)))
    steps = f"unprofiled steps of {PROCESSES.count(nums)}" if comparison.unprofiled else STEPS.count(nums)
    return f"{least} {per}, from {steps}, without an interval"


def _percent(ns: float, comparison: Comparison) -> float:
    return 100 * ns / comparison.a_ns
