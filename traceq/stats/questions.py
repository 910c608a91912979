"""Verdicts of the questions that a run asks: chance has an opportunity in each, and all of them together get 5 %.

Half of the 5 % belongs to the main question, also if it is the only one, the other half to the rest, by Holm's
procedure; what is claimed passes its share on (the fallback procedure of Wiens, with Holm's for the rest: Bretz and
others, Statistics in Medicine 28, 2009). So the main question needs the same evidence whatever else is asked, and is
claimed by chance in one of 40 runs. The recording's number of looks is part of every p-value, so the same rules hold
for recordings that stop early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.stats.comparison import Comparison
from traceq.stats.verdict import Verdict, VerdictName
from traceq.units import Unit, format_value

__all__ = ["adjusted", "answer_together"]

ALPHA = 0.05
"""Chance that a run without any effect claims one."""


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
        odds = f"with {num} questions, chance does that in up to {_percent(chance)} of runs"
    else:
        odds = f"chance does that in {_percent(chance / 2)} of runs, and a claim may in {_percent(ALPHA / 2)}"
    return replace(verdict, name=name, reason=f"{verdict.reason}; {odds}")


def _percent(share: float) -> str:
    return format_value(100 * share, Unit.PERCENT)
