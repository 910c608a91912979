"""Confidence levels for group-sequential tests, in which pairs are tested more than once.

A recording that stops as soon as it is decided has looked several times, and each look can err: of eleven looks at 95 %
intervals at least one misses in a quarter of all recordings. So every look uses one stricter level (Pocock 1977), and
the intervals are valid at all looks together, whatever stopped the recording (Jennison and Turnbull 1989). The levels
belong to LOOKS: the closer two looks are, the less the second one costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

__all__ = ["LOOKS", "ONE_LOOK", "Level", "level_of"]

LOOKS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of pairs after which a recording may stop; even, so that both orders are equally frequent."""

# For 1, 2, ... looks: percent of intervals that may miss at a single look, so that 5 % and 10 % miss at any. By the
# recursive integration of Armitage, McPherson and Rowe (1969), which tests/stats/test_sequential.py repeats.
_MISSED_95 = (5, 3.18, 2.44, 1.93, 1.63, 1.38, 1.21, 1.06, 0.96, 0.86, 0.79)
_MISSED_90 = (10, 6.56, 5.15, 4.11, 3.50, 2.98, 2.63, 2.31, 2.09, 1.88, 1.73)


@dataclass(frozen=True, slots=True)
class Level:
    """Normal quantiles of the 95 % and the 90 % interval at each of `num_looks` looks."""

    num_looks: int
    z95: float
    z90: float


def level_of(num_looks: int) -> Level:
    """Return the level for 1 to 11 looks, their number fixed before the first one."""
    assert 1 <= num_looks <= len(LOOKS)
    z95, z90 = (NormalDist().inv_cdf(1 - missed[num_looks - 1] / 200) for missed in (_MISSED_95, _MISSED_90))
    return Level(num_looks, z95, z90)


ONE_LOOK = level_of(1)
"""Level of a number of pairs that was fixed beforehand: the usual 95 % and 90 %."""
