"""The order of unprofiled halves: adjacent pairs in blocks of 16, half of them AB and half BA, shuffled.

Blocks of different comparisons alternate. Because machines drift, the interval of a sequential A...A B...B order
contained the true difference in only 6 of 30 runs; that of this order does in 95 %.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from traceq.model import Arm

__all__ = [
    "PAIRS_PER_BLOCK",
    "SINGLE_ARM_STEPS_PER_BLOCK",
    "Block",
    "block_sizes",
    "comparisons",
    "pairs_for",
    "pairs_for_single_arm",
    "schedule",
]

PAIRS_PER_BLOCK = 16
SINGLE_ARM_STEPS_PER_BLOCK = 512  # in single-arm runs: longer blocks interrupt the data loader less often


@dataclass(frozen=True, slots=True)
class Block:
    """Adjacent pairs of one comparison, timed without interruption.

    `b_second[i]` is True where the i-th pair runs A then B. `num_looks`: the number of interim looks at which the
    comparison may stop.
    """

    a: str
    b: str
    first_pair: int
    b_second: tuple[bool, ...]
    num_looks: int = 1

    @property
    def is_control(self) -> bool:
        """True for the A/A control, the baseline against itself."""
        return self.a == self.b

    @property
    def end_pair(self) -> int:
        """Number of pairs of its comparison after this block."""
        return self.first_pair + len(self.b_second)

    def halves(self, index: int) -> tuple[str, str]:
        """Return the arms of the i-th pair, in the order they run."""
        return (self.a, self.b) if self.b_second[index] else (self.b, self.a)


def comparisons(arms: Sequence[Arm]) -> tuple[tuple[str, str], ...]:
    """Return (reference arm, arm) for each timed arm but the baseline, and last the A/A control."""
    (baseline,) = (arm.name for arm in arms if arm.baseline)
    others = [arm for arm in arms if arm.timed and not arm.baseline]
    return (*((arm.against or baseline, arm.name) for arm in others), (baseline, baseline))


def pairs_for(steps: int, steps_per_half: int) -> int:
    """Return the number of pairs, in whole blocks, that measures at least `steps` steps of each arm."""
    halves = -(-steps // steps_per_half)
    return -(-halves // PAIRS_PER_BLOCK) * PAIRS_PER_BLOCK


def pairs_for_single_arm(steps: int, steps_per_half: int) -> int:
    """Return the even number of pairs that measures at least `steps` steps of the only arm, which both halves run.

    The first step of a half with several steps settles and does not count.
    """
    halves = -(-steps // max(1, steps_per_half - 1))
    return 2 * -(-halves // 4)


def block_sizes(looks: Sequence[int], max_pairs: int = PAIRS_PER_BLOCK) -> tuple[int, ...]:
    """Return the pairs of each block, such that every look is at the end of a block: 16, or 8 from 16 to 24 pairs."""
    sizes: list[int] = []
    for before, look in pairwise((0, *looks)):
        whole, rest = divmod(look - before, max_pairs)
        sizes += [*[max_pairs] * whole, *[rest] * bool(rest)]
    return tuple(sizes)


def schedule(
    compared: Sequence[tuple[str, str]], looks: Sequence[int], seed: int, max_pairs: int = PAIRS_PER_BLOCK
) -> tuple[Block, ...]:
    """Return the blocks of all comparisons, of at most `max_pairs` pairs each, in the order they run to the last look.

    Comparisons alternate. The same seed gives every rank the same order.
    """
    rng = random.Random(seed)
    blocks, first_pair = [], 0
    for size in block_sizes(looks, max_pairs):
        for a, b in rng.sample(list(compared), len(compared)):
            b_second = [True, False] * (size // 2)
            rng.shuffle(b_second)
            blocks.append(Block(a, b, first_pair, tuple(b_second), len(looks)))
        first_pair += size
    return tuple(blocks)
