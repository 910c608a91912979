"""Caveats of measured step times: order, stalls, ranks, A/A control, noise floor; each function returns one or none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from traceq.model import Caveat
from traceq.stats.group_sequential import ONE_LOOK
from traceq.stats.hodges_lehmann import Shift
from traceq.stats.verdict import Threshold, Verdict
from traceq.units import Unit, format_value

__all__ = [
    "RARE",
    "SLOW",
    "Caveats",
    "below_noise_floor",
    "control_differs",
    "mean_disagrees",
    "one_order",
    "ranks_disagree",
    "slow_steps_differ",
]

RARE = Fraction(1, 100)  # exact, as the counts it is compared with exceed the range of a float
SLOW = 1.5
"""A slow step takes longer than this many times the median of its arm."""

Caveats = tuple[Caveat, ...]


def one_order(b_second: NDArray[np.bool_]) -> Caveats:
    """Return a caveat if all pairs ran in one order, as in a recording that was stopped early."""
    if b_second.any() and not b_second.all():
        return ()
    last = "B" if b_second.all() else "A"
    return (Caveat("one_order", f"{last} ran second in every pair: the delta includes the cost of running second"),)


def mean_disagrees(shift: Shift, threshold: Threshold) -> Caveats:
    """Return a caveat if mean and median differ by more than the threshold plus the error of the mean."""
    if abs(shift.mean - shift.delta) <= threshold.ns + ONE_LOOK.z95 * shift.mean_error:
        return ()
    text = f"means differ by {_delta(shift.mean)}, medians by {_delta(shift.delta)}: the median ignores rare stalls"
    return (Caveat("mean_disagrees", text),)


def slow_steps_differ(num_slow_a: int, num_slow_b: int) -> Caveats:
    """Return a caveat if the split of slow halves between the arms is uneven by an exact sign test at 1 %."""
    num, fewer = num_slow_a + num_slow_b, min(num_slow_a, num_slow_b)
    if sum(math.comb(num, i) for i in range(fewer + 1)) * 2 > RARE * 2**num:
        return ()
    text = (
        f"{num_slow_a:,} halves of A and {num_slow_b:,} of B exceed {SLOW} times the median of their arm: "
        "one arm stalls more"
    )
    return (Caveat("slow_steps_differ", text),)


def ranks_disagree(shift: Shift, ranks: Sequence[Shift], threshold: Threshold) -> Caveats:
    """Return a caveat that names the rank whose interval is farthest from the job's, if by more than the threshold."""
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


def control_differs(control: Verdict | None) -> Caveats:
    """Return a caveat if the A/A control shows a material difference; chance does that in 1 of 30 noisy recordings.

    The verdict does not depend on it: it would lose as many true claims as false ones.
    """
    if not control or control.name != "material":
        return ()
    text = (
        f"the A/A control differs from itself: {control.reason}; chance does that in 1 of 30 noisy recordings, "
        "if it recurs something else ran on this machine"
    )
    return (Caveat("control_differs", text),)


def below_noise_floor(shift: Shift, verdict: Verdict, floor_ns: int | None) -> Caveats:
    """Return a caveat if the verdict is a difference that does not exceed the A/A noise floor."""
    if floor_ns is None or not verdict.is_difference or abs(shift.delta) > floor_ns:
        return ()
    text = (
        f"{_delta(shift.delta)} does not exceed the A/A noise floor, {format_value(floor_ns, Unit.NS)}; "
        "the verdict is from the interval of this comparison"
    )
    return (Caveat("below_noise_floor", text),)


def _delta(ns: int) -> str:
    return format_value(ns, Unit.DELTA_NS)
