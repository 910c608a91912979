"""Whether B differs from A, by how much, and how sure that is. Arithmetic on step times; no traces, no text layout.

The estimate is a median of differences and the interval is made of two of those differences (Hodges and Lehmann 1963;
the inverted Mann-Whitney test). Where the order within each pair was drawn at random, the draw alone justifies it, so
drift, autocorrelation and heavy tails do not spoil it: `benchmarks/stats.py` prints how often it covers the truth.
"""

from __future__ import annotations

from traceq.stats.comparison import Comparison, compare_pairs, compare_values, slowest_rank_ns
from traceq.stats.hodges_lehmann import Interval
from traceq.stats.interaction import Interaction, interaction
from traceq.stats.per_sample import Samples, samples_apart
from traceq.stats.sequential import LOOKS
from traceq.stats.verdict import Verdict, VerdictName

__all__ = [
    "LOOKS",
    "Comparison",
    "Interaction",
    "Interval",
    "Samples",
    "Verdict",
    "VerdictName",
    "compare_pairs",
    "compare_values",
    "interaction",
    "samples_apart",
    "slowest_rank_ns",
]
