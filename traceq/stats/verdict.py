"""From an interval and a threshold to one of four words, with the reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from traceq.errors import UsageFault
from traceq.stats.hodges_lehmann import Interval, Shift
from traceq.units import Unit, format_value

__all__ = ["PAIRS", "PROCESSES", "STEPS", "SampleKind", "Threshold", "Verdict", "VerdictName", "verdict"]

POWER = 1.645  # normal quantile of 95 %: how often the values asked for are enough

VerdictName = Literal["in_the_noise", "material", "detectable", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the interval says against the threshold; `pairs_needed` only where it is inconclusive and can be known."""

    name: VerdictName
    threshold_pct: float
    reason: str
    pairs_needed: int | None = None

    @property
    def is_final(self) -> bool:
        """More pairs are not worth their time: the difference matters, or it does not."""
        return self.name in ("in_the_noise", "material")


@dataclass(frozen=True, slots=True)
class SampleKind:
    """What the values are, which decides whether they can be tested and what the verdict holds for.

    `fewest` is the number to ask for where there is no interval yet, and `enough` says it in words; None = no number
    would give one. More than `most` nobody waits for.
    """

    unit: str
    fewest: int | None = None
    enough: str = ""
    scope: str = ""
    most: int = 5_000


PAIRS = SampleKind(
    "pairs", 16, "16, eight of either order,", "in this process "
)  # one group of the recorder's schedule
PROCESSES = SampleKind(
    "processes a side", 4, "4 a side", most=200
)  # the most extreme orders are 2 of 70; with 3 a side 2 of 20
STEPS = SampleKind("profiled steps of one window a side")


@dataclass(frozen=True, slots=True)
class Threshold:
    """The smallest difference that matters, in percent of A's median step. Raises UsageFault for a negative one."""

    percent: float
    a_ns: int

    def __post_init__(self) -> None:
        if not 0 <= self.percent < math.inf:
            raise UsageFault(f"threshold {self.percent} %: expected 0 or more, in percent of A's median step")

    @property
    def ns(self) -> float:
        """theta, ns."""
        return self.a_ns * self.percent / 100

    def __str__(self) -> str:
        return f"±{format_value(self.ns, Unit.NS)} ({format_value(self.percent, Unit.PERCENT)} of A's step)"


def verdict(shift: Shift, threshold: Threshold, kind: SampleKind, nums: tuple[int, int]) -> Verdict:
    """In the noise, material, detectable or inconclusive, by the first of these that holds; `nums` values a side."""
    name, reason, needed = _decide(shift, threshold, kind, nums)
    return Verdict(name, threshold.percent, reason, needed)


def _decide(
    shift: Shift, threshold: Threshold, kind: SampleKind, nums: tuple[int, int]
) -> tuple[VerdictName, str, int | None]:
    if not (shift.ci95 and shift.ci90):
        return "inconclusive", _too_few(kind, nums), kind.fewest
    theta, (low, high) = threshold.ns, shift.ci95
    looks = f" of {shift.level.num_looks} looks" if shift.level.num_looks > 1 else ""
    ci95, ci90 = (f"the {pct} % interval{looks}, {_span(ci)}," for pct, ci in ((95, shift.ci95), (90, shift.ci90)))
    if -theta < shift.ci90[0] and shift.ci90[1] < theta:
        return "in_the_noise", f"{kind.scope}{ci90} lies within {threshold}", None
    if low > theta or high < -theta:
        return "material", f"{kind.scope}{ci95} lies beyond {threshold}", None
    if low > 0 or high < 0:
        return "detectable", f"{kind.scope}{ci95} excludes 0 but reaches inside {threshold}", None
    needed = _num_needed(shift, threshold, min(nums))
    advice = f"; {_advice(needed, kind)}" if needed else ""
    return "inconclusive", f"{kind.scope}{ci95} holds 0 and {ci90} reaches beyond {threshold}{advice}", needed


def _advice(needed: int, kind: SampleKind) -> str:
    """What would decide; a number that nobody waits for is not given."""
    if needed > kind.most:
        return f"more than {kind.most:,} {kind.unit} would: out of reach with this much noise"
    return f"about {needed:,} {kind.unit} would decide"


def _too_few(kind: SampleKind, nums: tuple[int, int]) -> str:
    counted = f"{kind.unit} ({' and '.join(f'{num:,}' for num in dict.fromkeys(nums))})"
    if kind.fewest is None:
        return f"{counted} give an estimate and no interval"
    return f"{counted} are too few for an interval; {kind.enough} give one"


def _num_needed(shift: Shift, threshold: Threshold, num: int) -> int | None:
    """Values that bring the interval inside or outside the threshold 19 times in 20; None where none would."""
    assert shift.ci95
    standard_error = (shift.ci95[1] - shift.ci95[0]) / 2 / shift.level.z95
    margin = max(threshold.ns, abs(shift.delta) - threshold.ns)
    if not margin:
        return None
    return max(num + 1, math.ceil(num * ((shift.level.z95 + POWER) * standard_error / margin) ** 2))


def _span(interval: Interval) -> str:
    return f"{format_value(interval[0], Unit.DELTA_NS)} to {format_value(interval[1], Unit.DELTA_NS)}"
