"""Whether a step of one arm depends on which arm ran before it (carry-over)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.model import Caveat
from traceq.stats.group_sequential import ONE_LOOK
from traceq.stats.hodges_lehmann import shift_between
from traceq.stats.measurement_caveats import RARE, Caveats
from traceq.stats.verdict import Threshold
from traceq.units import Unit, format_value

__all__ = ["carried_over"]

_SMALLEST_BLOCK = 8  # pairs that the recorder runs back to back, before it pauses, and a settling pair


def carried_over(b_second: NDArray[np.bool_], change: NDArray[np.int64], threshold: Threshold) -> Caveats:
    """Return a caveat for each arm whose halves depend, by more than the threshold, on the arm that ran before.

    `change` int64[P] is second minus first half of each pair. A second half always follows the other arm. Which arm a
    first half follows was drawn with the pair before, so pairs of the same order that differ in it differ by the
    carry-over of their first half. The first pair of a block follows the settling pair and is left out.
    """
    from statistics import NormalDist  # for recordings with pairs alone

    rare_in_either_arm = replace(ONE_LOOK, z95=NormalDist().inv_cdf(1 - float(RARE) / 4))
    is_inside = np.arange(1, len(b_second)) % _SMALLEST_BLOCK != 0
    before, order, changes = b_second[:-1][is_inside], b_second[1:][is_inside], change[1:][is_inside]
    caveats = []
    for arm, other, starts in (("A", "B", True), ("B", "A", False)):
        after_self, after_other = (changes[(order == starts) & (before == last)] for last in (not starts, starts))
        if not (after_self.size and after_other.size):
            continue
        carry_over = shift_between(after_self, after_other, level=rare_in_either_arm)
        low, high = carry_over.ci95 or (0, 0)
        if (low > 0 or high < 0) and abs(carry_over.delta) > threshold.ns:
            more = format_value(carry_over.delta, Unit.DELTA_NS)
            text = (
                f"carry-over: a step of {arm} takes {more} after {other} relative to after {arm}; "
                "part of the delta is carry-over"
            )
            caveats.append(Caveat("carried_over", text))
    return tuple(caveats)
