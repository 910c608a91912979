"""Reasons to mistrust a comparison. Each is one caveat or none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from traceq.model import Caveat
from traceq.stats.hodges_lehmann import Shift, shift_between
from traceq.stats.sequential import ONE_LOOK
from traceq.stats.verdict import Threshold, Verdict
from traceq.units import Unit, format_value

__all__ = [
    "below_noise_floor",
    "carried_over",
    "control_differs",
    "mean_disagrees",
    "one_order",
    "ranks_disagree",
    "slow_steps_differ",
]

RARE = Fraction(1, 100)  # exact, as the counts it is compared with outgrow a float
_RARE_IN_EITHER_ARM = replace(ONE_LOOK, z95=NormalDist().inv_cdf(1 - float(RARE) / 4))
_SMALLEST_GROUP = 8  # pairs that the recorder runs one after the other, before it collects and settles

Doubt = tuple[Caveat, ...]


def one_order(b_second: NDArray[np.bool_]) -> Doubt:
    """All pairs ran in one order, as in a recording that was stopped early."""
    if b_second.any() and not b_second.all():
        return ()
    last = "B" if b_second.all() else "A"
    return (Caveat("one_order", f"{last} ran second in every pair: what it costs to come second is in the difference"),)


def mean_disagrees(shift: Shift, threshold: Threshold) -> Doubt:
    """Mean and median answer differently, by more than matters and more than the mean's own error explains."""
    if abs(shift.mean - shift.delta) <= threshold.ns + ONE_LOOK.z95 * shift.mean_error:
        return ()
    text = f"means differ by {_delta(shift.mean)}, medians by {_delta(shift.delta)}: a median does not see rare stalls"
    return (Caveat("mean_disagrees", text),)


def slow_steps_differ(num_slow_a: int, num_slow_b: int) -> Doubt:
    """One arm has more slow halves than an even split allows, by an exact sign test at 1 %."""
    num, fewer = num_slow_a + num_slow_b, min(num_slow_a, num_slow_b)
    if sum(math.comb(num, i) for i in range(fewer + 1)) * 2 > RARE * 2**num:
        return ()
    text = (
        f"{num_slow_a:,} of A's halves and {num_slow_b:,} of B's are above 1.5 times their median: one arm stalls more"
    )
    return (Caveat("slow_steps_differ", text),)


def ranks_disagree(shift: Shift, ranks: Sequence[Shift], threshold: Threshold) -> Doubt:
    """A rank's interval lies apart from the job's, by more than matters; the rank farthest from the job is named."""
    if not shift.ci95:
        return ()
    gaps = [max(rank.ci95[0] - shift.ci95[1], shift.ci95[0] - rank.ci95[1]) if rank.ci95 else 0 for rank in ranks]
    worst = int(np.argmax(gaps))
    if gaps[worst] <= threshold.ns:
        return ()
    num = sum(gap > threshold.ns for gap in gaps)
    text = (
        f"the job's step differs by {_delta(shift.delta)}, but {num:,} of {len(ranks):,} ranks disagree: "
        f"{_delta(ranks[worst].delta)} on rank {worst}"
    )
    return (Caveat("ranks_disagree", text),)


def control_differs(control: Verdict | None) -> Doubt:
    """The A/A control finds a material difference where there is none."""
    if not control or control.name != "material":
        return ()
    text = f"the A/A control differs from itself: {control.reason}; do not trust this verdict, record again"
    return (Caveat("control_differs", text),)


def below_noise_floor(shift: Shift, verdict: Verdict, floor_ns: int | None) -> Doubt:
    """A difference is claimed that is no larger than what the A/A control may show."""
    if floor_ns is None or verdict.name not in ("material", "detectable") or abs(shift.delta) > floor_ns:
        return ()
    text = f"{_delta(shift.delta)} is no more than the {format_value(floor_ns, Unit.NS)} that the A/A control may show"
    return (Caveat("below_noise_floor", text),)


def carried_over(b_second: NDArray[np.bool_], change: NDArray[np.int64], threshold: Threshold) -> Doubt:
    """What ran before an arm's half matters to it, by more than matters: the difference holds some of that.

    `change` int64[P], second minus first half of each pair. A second half always follows the other arm. Which arm the
    first one follows was drawn with the pair before, so pairs of one order that differ in that differ by what their
    first half inherits. The first pair of a group follows what does not count, and is left out.
    """
    counts = np.arange(1, len(b_second)) % _SMALLEST_GROUP != 0
    before, order, after = b_second[:-1][counts], b_second[1:][counts], change[1:][counts]
    found = []
    for arm, other, starts in (("A", "B", True), ("B", "A", False)):
        own = [after[(order == starts) & (before == same)] for same in (not starts, starts)]
        if not all(part.size for part in own):
            continue
        inherits = shift_between(own[0], own[1], level=_RARE_IN_EITHER_ARM)
        low, high = inherits.ci95 or (0, 0)
        if (low > 0 or high < 0) and abs(inherits.delta) > threshold.ns:
            text = (
                f"what ran before matters: a step of {arm} takes {_delta(inherits.delta)} after {other}, against after "
                f"{arm}; the difference holds some of that"
            )
            found.append(Caveat("carried_over", text))
    return tuple(found)


def _delta(ns: int) -> str:
    return format_value(ns, Unit.DELTA_NS)
