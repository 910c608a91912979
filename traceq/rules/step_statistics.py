"""Statistics of a rule over the steps of a rank: mean, median, p95, max, min; exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from statistics import mean, median

__all__ = ["STATISTICS", "over_steps"]


def over_steps(statistic: str, ns: Mapping[int, int], windows: Mapping[int, int], *, is_share: bool) -> Fraction:
    """Return a statistic over steps of their times, or of their shares of the steps' windows; both ns by step.

    A mean share is the share of all steps together.
    """
    if is_share and statistic == "mean":
        return Fraction(sum(ns.values()), sum(windows.values()))
    divisors = windows if is_share else dict.fromkeys(windows, 1)
    return STATISTICS[statistic](sorted(Fraction(ns[index], divisors[index]) for index in windows))


def _p95(values: Sequence[Fraction]) -> Fraction:
    """Return the nearest rank of sorted values, which is their maximum where there are fewer than 20."""
    return values[-(-95 * len(values) // 100) - 1]


STATISTICS: Mapping[str, Callable[[Sequence[Fraction]], Fraction]] = {
    "mean": mean,
    "median": median,
    "p95": _p95,
    "max": max,
    "min": min,
}
"""Statistics of sorted values, by the word in a rule."""
