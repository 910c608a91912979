"""Verdicts of the questions that a run asks: chance has an opportunity in each, and all of them together get 5 %.

Half of the 5 % belongs to the main question, also if it is the only one, the other half to the rest, by Holm's
procedure; what is claimed passes its share on (the fallback procedure of Wiens, with Holm's for the rest: Bretz and
others, Statistics in Medicine 28, 2009). So the main question needs the same evidence whatever else is asked, and is
claimed by chance in one of 40 runs. The recording's number of looks is part of every p-value, so the same rules hold
for recordings that stop early. An interaction, the difference of a change's cost between two contexts, is one more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.stats.comparison import Comparison
from traceq.stats.group_sequential import level_of
from traceq.stats.hodges_lehmann import Interval, Shift
from traceq.stats.limits import ALPHA
from traceq.stats.sentences import REASONS
from traceq.stats.verdict import PAIRS, Threshold, Verdict, VerdictName, verdict
from traceq.units import Unit, format_value


@frozen
class Interaction:
    """Cost of a change in the second context minus the first, ns per step; intervals are None where either is."""

    delta_ns: int
    ci95_ns: Interval | None
    ci90_ns: Interval | None
    verdict: Verdict


def answer_together(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return the comparisons of one run, the main question first, claiming only what holds for all of them together.

    The intervals are unchanged, each with its own 95 %.
    """
    material = adjusted([comparison.p_material for comparison in comparisons])
    different = adjusted([comparison.p_different for comparison in comparisons])
    num = len(comparisons)
    return tuple(
        replace(comparison, verdict=_claimed(comparison.verdict, num, *chances), num_questions=num)
        for comparison, *chances in zip(comparisons, material, different, strict=True)
    )


def adjusted(p: Sequence[float]) -> NDArray[np.float64]:
    """float64[M]: p-values adjusted for all M questions, of which the first is the main one.

    A question is claimed if its value is at most 5 %: the main one if it is below 2.5 %, or below 5 % and all others,
    of which there are some, are claimed; the others by Holm's procedure at 2.5 %, or at 5 % if the main one is claimed.
    """
    main, others = p[0], _holm(np.array(p[1:]))
    of_others = np.maximum(others, 2 * np.minimum(main, others))
    least_of_main = 2 * min(main, others.max()) if others.size else 2 * main
    return np.array([max(main, least_of_main), *of_others])


def _holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[M]: the smallest levels at which Holm's procedure claims each question."""
    order = np.argsort(p, kind="stable")
    result = np.empty(len(p))
    result[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(result, 1.0)


def _claimed(verdict: Verdict, num: int, p_material: float, p_different: float) -> Verdict:
    """Return the verdict, weakened to what one of `num` questions may claim."""
    if not verdict.is_difference:
        return verdict
    if verdict.name == "material" and p_material <= ALPHA:
        return verdict
    name: VerdictName
    name, chance = ("detectable", p_material) if p_different <= ALPHA else ("inconclusive", p_different)
    if verdict.name == name:
        return verdict
    if num > 1:
        reason = REASONS["one_of_questions"].format(reason=verdict.reason, num=num, chance=_percent(chance))
    else:
        chances = {"chance": _percent(chance / 2), "allowed": _percent(ALPHA / 2)}
        reason = REASONS["only_question"].format(reason=verdict.reason, **chances)
    return replace(verdict, name=name, reason=reason)


def _percent(share: float) -> str:
    return format_value(100 * share, Unit.PERCENT)


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
        reason = REASONS["no_cost_claimed"].format(reason=result.reason)
        result = replace(result, name="inconclusive", reason=reason)
    return Interaction(shift.delta, ci95, ci90, result)


def _difference(here_ns: int, here: Interval | None, there_ns: int, there: Interval | None) -> Interval | None:
    if not (here and there):
        return None
    delta = there_ns - here_ns
    below = math.hypot(there_ns - there[0], here[1] - here_ns)
    above = math.hypot(there[1] - there_ns, here_ns - here[0])
    return round(delta - below), round(delta + above)
