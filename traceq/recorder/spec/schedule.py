"""The order of unprofiled halves: adjacent pairs, half of a group's pairs AB and half BA, shuffled; groups interleaved.

A sequential A...A B...B order covered the truth in 6 of 30 runs, this one in 95 %: a machine drifts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from traceq.model import Arm

__all__ = [
    "PAIRS_PER_GROUP",
    "STEPS_ALONE",
    "Group",
    "comparisons",
    "group_sizes",
    "pairs_alone",
    "pairs_for",
    "schedule",
]

PAIRS_PER_GROUP = 16
STEPS_ALONE = 512  # of a group, where one arm has nobody to take turns with: what feeds it is disturbed less often


@dataclass(frozen=True, slots=True)
class Group:
    """Adjacent pairs of one comparison. `b_second[i]` is True where the i-th pair runs A then B.

    `num_looks`: at how many numbers of pairs its comparison may stop.
    """

    a: str
    b: str
    first_pair: int
    b_second: tuple[bool, ...]
    num_looks: int = 1

    @property
    def is_control(self) -> bool:
        """The baseline against itself."""
        return self.a == self.b

    @property
    def end_pair(self) -> int:
        """Pairs of its comparison when it is over."""
        return self.first_pair + len(self.b_second)

    def halves(self, index: int) -> tuple[str, str]:
        """Arms of the i-th pair, in the order they run."""
        return (self.a, self.b) if self.b_second[index] else (self.b, self.a)


def comparisons(arms: Sequence[Arm]) -> tuple[tuple[str, str], ...]:
    """What each timed arm is compared with, and that arm; the baseline against itself: the A/A control."""
    (baseline,) = (arm.name for arm in arms if arm.baseline)
    others = [arm for arm in arms if arm.timed and not arm.baseline]
    return (*((arm.against or baseline, arm.name) for arm in others), (baseline, baseline))


def pairs_for(steps: int, steps_per_half: int) -> int:
    """Pairs that measure at least `steps` steps of each arm, in whole groups."""
    halves = -(-steps // steps_per_half)
    return -(-halves // PAIRS_PER_GROUP) * PAIRS_PER_GROUP


def pairs_alone(steps: int, steps_per_half: int) -> int:
    """An even number of pairs that measures at least `steps` steps of the only arm, which both halves run.

    Of a half of several steps the first one settles.
    """
    halves = -(-steps // max(1, steps_per_half - 1))
    return 2 * -(-halves // 4)


def group_sizes(looks: Sequence[int], most: int = PAIRS_PER_GROUP) -> tuple[int, ...]:
    """Pairs of each group, so that every look comes at the end of one: 16, or the 8 between 16 and 24 pairs."""
    sizes: list[int] = []
    for before, look in pairwise((0, *looks)):
        whole, rest = divmod(look - before, most)
        sizes += [*[most] * whole, *[rest] * bool(rest)]
    return tuple(sizes)


def schedule(
    compared: Sequence[tuple[str, str]], looks: Sequence[int], seed: int, most: int = PAIRS_PER_GROUP
) -> tuple[Group, ...]:
    """Groups, of `most` pairs or fewer, of all comparisons in the order they run, as far as the last look; comparisons
    take turns.

    The same seed gives every rank the same order.
    """
    rng = random.Random(seed)
    groups, first_pair = [], 0
    for size in group_sizes(looks, most):
        for a, b in rng.sample(list(compared), len(compared)):
            b_second = [True, False] * (size // 2)
            rng.shuffle(b_second)
            groups.append(Group(a, b, first_pair, tuple(b_second), len(looks)))
        first_pair += size
    return tuple(groups)
