"""One rank's part of a job's graph without its events: what is between its collectives, as few edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.whatif.rank_part import RankFacts

__all__ = ["ContractedRank"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@frozen(eq=False)
class ContractedRank:
    """N moments and E edges of one rank, with the same longest paths as its whole part has; fields as in `RankPart`.

    `changed` int64[E, 2 C] ns: the weights in C `cases`, each the options of what is changed in it, at least and at
    most. Of each option, `lacking`: the names of what is there instead, only where there is nothing to change;
    `allocating`: how often each call of the allocator is removed.
    """

    facts: RankFacts
    time: Ints
    source: Ints
    target: Ints
    observed: Ints
    loosest: Ints
    changed: Ints
    cases: tuple[str, ...]
    call: Ints
    begins: Ints
    ends: Ints
    host_begins: Ints
    host_ends: Ints
    counted_steps: Mask
    communication: Ints
    lacking: Mapping[str, tuple[str, ...]]
    allocating: Mapping[str, Mapping[str, int]]

    def allocations(self, option: str) -> Counter[str]:
        """Return how often each call of the allocator is removed by an option."""
        return Counter(self.allocating[option])
