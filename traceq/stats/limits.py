"""Limits of what is said of step times, each with its unit and its reason; counts are plain numbers."""

from __future__ import annotations

from fractions import Fraction

# of a comparison

ALPHA = 0.05  # chance: how often a run without any effect may claim one
BROKEN = 0.001  # chance: an A/A control that differs so far (z above 3.29 at one look) is broken
POWER = 1.645  # normal quantile of 95 %: how often the estimated number of values is enough
SLOW = 1.5  # times the median of its arm: a step that takes longer stalls
RARE = Fraction(1, 100)
"""Chance of a caveat without a cause; exact, as the counts it is compared with exceed the range of a float."""
TYPICAL = 0.5  # part of an arm's halves: events of more belong to its typical step: they are in the median
BELOW = 0.025  # chance: how often a mean is below the lower end of its 95 % interval

# of ranks

LATE_BY_CHANCE = 0.05  # chance: how often symmetric ranks have a late one, by the rank test alone
PARTS = 8
"""Parts of a recording in each of which a late rank is late; other processes on its cores seldom make it so in all."""
FAR = 2.0  # times the gap that noise leaves: below 2 standard deviations for a thousand ranks
FEW_RANKS = 18
"""Below 7 standard deviations for a dozen ranks, whose spread is poorly estimated. Of jobs with 24 or more similar
ranks and 1 to 5 % noise per phase, 1 in 100 is split."""
NEAR = 0.25  # part of the distance from most values: outliers need not agree as closely
MANY_RANKS = 64
"""Ranks from which a quarter of them gives their spread, else half."""
