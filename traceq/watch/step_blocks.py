"""Steps of all ranks in blocks of 16, by their number: what a rank spent in each is a value, robust to single steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.watch.limits import STEPS_PER_BLOCK
from traceq.watch.step_store import REGULAR, STEP, TIMES

MEASURES = ("median", *TIMES, "compute", "queued", "memory")
"""Columns of a block: the median step, then means of its regular steps, s; `compute`: neither loader, nor backward, nor
collector; `queued`: s that threads waited for cores; bytes of memory. NaN: not read."""
_FEWEST = STEPS_PER_BLOCK // 2
_MOST_PENDING = 1 << 16
"""Rows of a rank that wait for those of another one."""
Values = NDArray[np.float64]


def measure(name: str) -> int:
    """Return the column of a measure."""
    return MEASURES.index(name)


@frozen
class StepBlock:
    """Values of a block, float64[num_ranks, len(MEASURES)], and where it began."""

    first_step: int
    time: float
    values: Values


class StepBlocks:
    """Joins rows of ranks, as they come, to blocks that all ranks have ended, most steps of which were regular."""

    def __init__(self, num_ranks: int) -> None:
        self._begin(num_ranks)

    def _begin(self, num_ranks: int) -> None:
        self._pending = [np.empty(0, STEP) for _ in range(num_ranks)]
        self._next = 0

    def add(self, rows_of_ranks: list[NDArray[np.void]]) -> list[StepBlock]:
        """Add the new rows of each rank, in the order of ranks; return the blocks that have ended with them."""
        for rank, rows in enumerate(rows_of_ranks):
            if len(rows) and len(self._pending[rank]) and rows["step"][0] < self._pending[rank]["step"][-1]:
                self._begin(len(self._pending))  # the job was started again
            self._pending[rank] = np.concatenate([self._pending[rank], rows])[-_MOST_PENDING:]
        if not all(len(rows) for rows in self._pending):
            return []
        if self._next == 0:
            self._next = int(max(rows["step"][0] for rows in self._pending))
            self._next = -(-self._next // STEPS_PER_BLOCK) * STEPS_PER_BLOCK
        ended = min(int(rows["step"][-1]) for rows in self._pending) + 1
        blocks = []
        while self._next + STEPS_PER_BLOCK <= ended:
            block = self._block()
            self._next += STEPS_PER_BLOCK
            if block is not None:
                blocks.append(block)
        for rank, rows in enumerate(self._pending):
            self._pending[rank] = rows[np.searchsorted(rows["step"], self._next) :]
        return blocks

    def _block(self) -> StepBlock | None:
        parts = []
        for rows in self._pending:
            ends = np.searchsorted(rows["step"], [self._next, self._next + STEPS_PER_BLOCK])
            part = rows[slice(*ends)]
            if np.count_nonzero(part["flags"] == REGULAR) < _FEWEST:
                return None
            parts.append(part)
        return StepBlock(self._next, float(parts[0]["time"][0]), np.array([_values(part) for part in parts]))


def _values(rows: NDArray[np.void]) -> list[float]:
    regular = rows[rows["flags"] == REGULAR]
    means = {name: float(regular[name].mean()) for name in TIMES}
    computed_s = means["wall"] - means["loader"] - means["backward"] - means["gc"]
    queued, memory = (rows[name][~np.isnan(rows[name])] for name in ("queued", "memory"))
    return [
        float(np.median(regular["wall"])),
        *means.values(),
        computed_s,
        float(queued.mean()) if len(queued) else np.nan,
        float(memory[-1]) if len(memory) else np.nan,
    ]
