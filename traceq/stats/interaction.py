"""Interaction: the difference of a change's cost between two contexts."""

from __future__ import annotations

import math
from dataclasses import replace

from traceq.frozen import frozen
from traceq.stats.comparison import Comparison
from traceq.stats.group_sequential import level_of
from traceq.stats.hodges_lehmann import Interval, Shift
from traceq.stats.sample_kinds import PAIRS
from traceq.stats.verdict import Threshold, Verdict, verdict

__all__ = ["Interaction", "interaction"]


@frozen
class Interaction:
    """Cost of a change in the second context minus the first, ns per step; intervals are None where either is."""

    delta_ns: int
    ci95_ns: Interval | None
    ci90_ns: Interval | None
    verdict: Verdict


def interaction(here: Comparison, there: Comparison) -> Interaction:
    """Return the cost there minus the cost here, of two comparisons that share no pair.

    The threshold is in percent of A's step here. The interval of the difference comes from the ends of both: distances
    from the estimates add up by squares (Donner and Zou, Statistical Methods in Medical Research 21, 2012: MOVER). An
    interaction is one more question of the run, which is asked only if one of the two costs is claimed.
    """
    ci95 = _difference(here.delta_ns, here.ci95_ns, there.delta_ns, there.ci95_ns)
    ci90 = _difference(here.delta_ns, here.ci90_ns, there.delta_ns, there.ci90_ns)
    mean = there.mean_delta_ns - here.mean_delta_ns
    level = level_of(max(here.num_looks, there.num_looks))
    shift = Shift(there.delta_ns - here.delta_ns, mean, math.inf, ci95, ci90, level)
    threshold = Threshold(here.verdict.threshold_pct, here.a_ns)
    result = verdict(shift, threshold, PAIRS, (here.num_pairs, there.num_pairs))
    if result.is_difference and not (here.verdict.is_difference or there.verdict.is_difference):
        reason = f"{result.reason}; not claimed, as neither of the two costs is"
        result = replace(result, name="inconclusive", reason=reason)
    return Interaction(shift.delta, ci95, ci90, result)


def _difference(here_ns: int, here: Interval | None, there_ns: int, there: Interval | None) -> Interval | None:
    if not (here and there):
        return None
    delta = there_ns - here_ns
    below = math.hypot(there_ns - there[0], here[1] - here_ns)
    above = math.hypot(there[1] - there_ns, here_ns - here[0])
    return round(delta - below), round(delta + above)
