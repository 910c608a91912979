"""Verdict from a confidence interval and a threshold, with the reason, for each kind of values that it may rest on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from traceq.errors import UsageFault
from traceq.frozen import frozen
from traceq.stats.hodges_lehmann import Interval, Shift
from traceq.stats.limits import POWER
from traceq.stats.sentences import OF_MEAN, ONE_WINDOW, REASONS
from traceq.units import Unit, format_value


@frozen
class SampleKind:
    """Kind of values: whether they can be tested and what the verdict is valid for.

    `noun` and `of` name the values, as in "4 processes" "per side". `fewest` is the number to record where there is no
    interval yet, None if no number gives one; `balance` is a condition on it. `scope` opens the reason. Above `most`
    values the reason gives only that bound.
    """

    noun: str
    of: str = ""
    fewest: int | None = None
    balance: str = ""
    scope: str = ""
    most: int = 5_000

    def count(self, text: str) -> str:
        """Return `1 process per side` or `3 and 7 processes per side` for the number in the text."""
        plural = {"process": "processes"}.get(self.noun, f"{self.noun}s")
        return " ".join(filter(None, (text, self.noun if text == "1" else plural, self.of)))


PAIRS = SampleKind("pair", "", 16, ", 8 in each order", "in this process, ")
"""The fewest are one block of the recorder's schedule."""
MEANS = replace(PAIRS, scope=OF_MEAN)
PROCESSES = SampleKind("process", "per side", 4, most=200)
"""The most extreme orders of 4 per side are 2 of 70; of 3 per side 2 of 20."""
STEPS = SampleKind("profiled step", ONE_WINDOW)

VerdictName = Literal["in_the_noise", "material", "detectable", "inconclusive"]

VERDICT_TEXTS: dict[VerdictName, str] = {
    "in_the_noise": "in the noise",
    "material": "material",
    "detectable": "detectable, not surely material",
    "inconclusive": "inconclusive",
}
"""Verdicts as people read them."""


@frozen
class Verdict:
    """Result of testing the interval against the threshold; `pairs_needed` only if inconclusive, where it is known."""

    name: VerdictName
    threshold_pct: float
    reason: str
    pairs_needed: int | None = None

    @property
    def text(self) -> str:
        """The verdict as people read it."""
        return VERDICT_TEXTS[self.name]

    @property
    def is_difference(self) -> bool:
        """Whether the interval excludes 0 and the difference may matter."""
        return self.name in ("material", "detectable")

    @property
    def is_open(self) -> bool:
        """Whether nothing is decided: neither that there is a difference, nor that it does not matter."""
        return self.name == "inconclusive"

    @property
    def is_final(self) -> bool:
        """Whether more pairs would not change the answer: the difference matters, or it does not."""
        return self.name in ("in_the_noise", "material")


@frozen
class Threshold:
    """Smallest material difference, in percent of A's median step. Raises UsageFault for a negative one."""

    percent: float
    a_ns: int

    def __post_init__(self) -> None:
        if not 0 <= self.percent < math.inf:
            raise UsageFault(f"threshold {self.percent} %: expected 0 or more, in percent of A's median step")

    @property
    def ns(self) -> float:
        """Theta, ns."""
        return self.a_ns * self.percent / 100

    def __str__(self) -> str:
        return f"±{format_value(self.ns, Unit.NS)} ({format_value(self.percent, Unit.PERCENT)} of A's step)"


def verdict(shift: Shift, threshold: Threshold, kind: SampleKind, nums: tuple[int, int]) -> Verdict:
    """Return the first of in the noise, material, detectable, inconclusive that applies; `nums` are values per side."""
    name, reason, needed = _decide(shift, threshold, kind, nums)
    return Verdict(name, threshold.percent, reason, needed)


def _decide(
    shift: Shift, threshold: Threshold, kind: SampleKind, nums: tuple[int, int]
) -> tuple[VerdictName, str, int | None]:
    if not (shift.ci95 and shift.ci90):
        return "inconclusive", _too_few(kind, nums), kind.fewest
    theta, (low, high) = threshold.ns, shift.ci95
    looks = f" over {shift.level.num_looks} looks" if shift.level.num_looks > 1 else ""
    ci95, ci90 = (f"the {pct} % CI{looks}, {_span(ci)}," for pct, ci in ((95, shift.ci95), (90, shift.ci90)))
    reasons = {
        state: REASONS[state].format(scope=kind.scope, ci95=ci95, ci90=ci90, threshold=threshold)
        for state in ("in_the_noise", "material", "detectable", "open")
    }
    if -theta < shift.ci90[0] and shift.ci90[1] < theta:
        return "in_the_noise", reasons["in_the_noise"], None
    if low > theta or high < -theta:
        return "material", reasons["material"], None
    if low > 0 or high < 0:
        return "detectable", reasons["detectable"], None
    needed = _num_needed(shift, threshold.ns, min(nums))
    return "inconclusive", _advised(reasons["open"], needed, kind), needed


def _span(interval: Interval) -> str:
    return f"{format_value(interval[0], Unit.DELTA_NS)} to {format_value(interval[1], Unit.DELTA_NS)}"


def _num_needed(shift: Shift, theta_ns: float, num: int) -> int | None:
    """Return the values that bring the interval inside or outside +-theta 19 times in 20; None if none would.

    `num` values gave the interval of the shift.
    """
    assert shift.ci95
    standard_error = (shift.ci95[1] - shift.ci95[0]) / 2 / shift.level.z95
    margin = max(theta_ns, abs(shift.delta) - theta_ns)
    if not margin:
        return None
    return max(num + 1, math.ceil(num * ((shift.level.z95 + POWER) * standard_error / margin) ** 2))


def _advised(reason: str, needed: int | None, kind: SampleKind) -> str:
    """Return the reason with the number of values that would decide, up to the largest that is practical."""
    if not needed:
        return reason
    if needed > kind.most:
        return REASONS["needs_more_than"].format(reason=reason, values=kind.count(f"{kind.most:,}"))
    return REASONS["needs"].format(reason=reason, values=kind.count(f"{needed:,}"))


def _too_few(kind: SampleKind, nums: tuple[int, int]) -> str:
    """Return that these numbers of values per side give no interval, and how many would."""
    values = kind.count(" and ".join(f"{num:,}" for num in dict.fromkeys(nums)))
    give = "gives" if nums == (1, 1) else "give"
    if kind.fewest is None:
        return REASONS["no_interval"].format(values=values, give=give)
    return REASONS["too_few"].format(values=values, give=give, fewest=f"{kind.fewest}{kind.balance}")
