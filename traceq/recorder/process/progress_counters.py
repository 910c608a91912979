"""Progress of each local rank: counters in a shared file, written in 0.1 us and read by the launcher."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from traceq.locations import Most, read_whole

__all__ = ["PHASES_ENTERED", "Progress", "ProgressCounters", "create_counters", "read_counters"]

_FIELDS = 4
PHASES_ENTERED = 2
"""The cell that `count_phase` counts in."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Counters of one rank as read by the launcher. `finished` is 1 once all of its results are on disk."""

    steps_ended: int
    steps_planned: int
    phases_entered: int
    finished: int


class ProgressCounters:
    """Counters of one rank as it writes them; without a file only the rank itself sees them.

    `cells`: the fields of `Progress`, in order.
    """

    __slots__ = ("cells",)

    def __init__(self, path: str, rank: int) -> None:
        if path:
            with Path(path).open("r+b") as file:
                cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
            self.cells = cells[rank * _FIELDS : (rank + 1) * _FIELDS]
        else:
            self.cells = memoryview(bytearray(8 * _FIELDS)).cast("q")

    @property
    def text(self) -> str:
        """Progress as `40 of 111 steps`; more than planned have ended where irregular ones made others run again."""
        if self.num_ended > self.num_planned:
            return f"{self.num_ended:,} steps, not {self.num_planned:,}, as those beside irregular steps run again"
        return f"{self.num_ended:,} of {self.num_planned:,} steps"

    @property
    def num_ended(self) -> int:
        """Number of steps that have ended."""
        return int(self.cells[0])

    @property
    def num_planned(self) -> int:
        """Number of steps that are planned, with those that have ended."""
        return int(self.cells[1])

    @property
    def is_done(self) -> bool:
        """True when all planned steps have ended."""
        return self.num_ended >= self.num_planned

    def plan_steps(self, num_steps: int) -> None:
        """Set how many more steps are planned, for the progress bar."""
        self.cells[1] = self.cells[0] + num_steps

    def count_step(self) -> None:
        """Count a step that ended."""
        self.cells[0] += 1

    def count_phase(self) -> None:
        """Count a phase that began: of ranks that wait for each other, the one with the lowest count is late."""
        self.cells[PHASES_ENTERED] += 1

    def finish(self) -> None:
        """Record that everything is on disk."""
        self.cells[3] = 1


def create_counters(path: Path, num_ranks: int) -> None:
    """Write a file of zeros for that many ranks."""
    path.write_bytes(bytes(8 * _FIELDS * num_ranks))


def read_counters(path: Path) -> Sequence[Progress]:
    """Return the counters of all ranks, by rank."""
    cells = memoryview(read_whole(path, Most.STATUS)).cast("q")
    return [Progress(*cells[first : first + _FIELDS]) for first in range(0, len(cells), _FIELDS)]
