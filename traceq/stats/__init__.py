"""Statistics of step times: the difference of B and A, its confidence interval, and the verdict.

The estimate is a median of differences and the interval ends are two of those differences (Hodges and Lehmann 1963; the
inverted Mann-Whitney test). Where the order within each pair is randomised, the interval is valid whatever the noise:
drift, autocorrelation and heavy tails do not bias it. `benchmarks/stats.py` prints its coverage.
"""

from __future__ import annotations

from traceq.stats.comparison import (
    Comparison,
    Interaction,
    Samples,
    answer_together,
    compare_pairs,
    compare_values,
    interaction,
    samples_apart,
    slowest_rank_ns,
)
from traceq.stats.hodges_lehmann import LOOKS, Interval
from traceq.stats.verdict import Verdict, VerdictName

__all__ = [
    "LOOKS",
    "Comparison",
    "Interaction",
    "Interval",
    "Samples",
    "Verdict",
    "VerdictName",
    "answer_together",
    "compare_pairs",
    "compare_values",
    "interaction",
    "samples_apart",
    "slowest_rank_ns",
]
