"""The order of unprofiled halves: adjacent pairs, orientations shuffled 8 + 8 in groups of 16, groups interleaved.

A sequential A...A B...B order covered the truth in 6 of 30 runs, this one in 95 %: a machine drifts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from traceq.model import Arm

__all__ = ["PAIRS_PER_GROUP", "Group", "comparisons", "pairs_for", "schedule"]

PAIRS_PER_GROUP = 16


@dataclass(frozen=True, slots=True)
class Group:
    """Sixteen adjacent pairs of one comparison. `b_second[i]` is True where the i-th pair runs A then B."""

    a: str
    b: str
    first_pair: int
    b_second: tuple[bool, ...]

    def halves(self, index: int) -> tuple[str, str]:
        """Arms of the i-th pair, in the order they run."""
        return (self.a, self.b) if self.b_second[index] else (self.b, self.a)


def comparisons(arms: Sequence[Arm]) -> tuple[tuple[str, str], ...]:
    """The baseline against each other timed arm, and against itself: the A/A control."""
    (baseline,) = (arm.name for arm in arms if arm.baseline)
    others = [arm.name for arm in arms if arm.timed and not arm.baseline]
    return (*((baseline, other) for other in others), (baseline, baseline))


def pairs_for(steps: int, steps_per_half: int) -> int:
    """Pairs that measure at least `steps` steps of each arm, in whole groups."""
    halves = -(-steps // steps_per_half)
    return -(-halves // PAIRS_PER_GROUP) * PAIRS_PER_GROUP


def schedule(compared: Sequence[tuple[str, str]], num_pairs: int, seed: int) -> tuple[Group, ...]:
    """Groups of all comparisons in the order they run. The same seed gives every rank the same order."""
    rng = random.Random(seed)
    groups = []
    for first_pair in range(0, num_pairs, PAIRS_PER_GROUP):
        for a, b in rng.sample(list(compared), len(compared)):
            b_second = [True, False] * (PAIRS_PER_GROUP // 2)
            rng.shuffle(b_second)
            groups.append(Group(a, b, first_pair, tuple(b_second)))
    return tuple(groups)
