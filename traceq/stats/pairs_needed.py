"""Number of pairs, or of processes, that would decide: from the interval so far, or the fewest that give one."""

from __future__ import annotations

import math

from traceq.stats.hodges_lehmann import Shift
from traceq.stats.sample_kinds import SampleKind

__all__ = ["advise", "num_needed", "too_few"]

POWER = 1.645  # normal quantile of 95 %: how often the estimated number of values is enough


def num_needed(shift: Shift, theta_ns: float, num: int) -> int | None:
    """Return the values that bring the interval inside or outside +-theta 19 times in 20; None if none would.

    `num` values gave the interval of the shift.
    """
    assert shift.ci95
    standard_error = (shift.ci95[1] - shift.ci95[0]) / 2 / shift.level.z95
    margin = max(theta_ns, abs(shift.delta) - theta_ns)
    if not margin:
        return None
    return max(num + 1, math.ceil(num * ((shift.level.z95 + POWER) * standard_error / margin) ** 2))


def advise(needed: int, kind: SampleKind) -> str:
    """Return the number of values that would decide in words, up to the largest that is practical."""
    if needed > kind.most:
        return f"would need > {kind.count(f'{kind.most:,}')} at this noise level"
    return f"would need about {kind.count(f'{needed:,}')} to decide"


def too_few(kind: SampleKind, nums: tuple[int, int]) -> str:
    """Return in words that these numbers of values per side give no interval, and how many would."""
    counted = kind.count(" and ".join(f"{num:,}" for num in dict.fromkeys(nums)))
    verb = "gives" if nums == (1, 1) else "give"
    if kind.fewest is None:
        return f"{counted} {verb} an estimate but no confidence interval"
    return f"{counted} {verb} no confidence interval; record at least {kind.fewest}{kind.balance}"
