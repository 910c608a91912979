"""Ranks of any path for a diff: their summaries where they are many, and their traces where they are few."""

from __future__ import annotations

from collections.abc import Callable

from traceq.engines.analyze_path import SMALL
from traceq.engines.cache import How
from traceq.engines.engine import Engine
from traceq.engines.rank_reader import RankReader
from traceq.engines.rank_summary import STEP_TOTALS
from traceq.facts.ranks.run_ranks import RunRanks
from traceq.frozen import frozen
from traceq.locations import Place
from traceq.runs.read import read, read_arms

__all__ = ["PathReader"]


@frozen(eq=False)
class PathReader:
    """Reader of paths as the ranks of a run, by the engine that `start` returns.

    Folders whose traces have at most `small` bytes in total are read in this process; what is read is the same.
    """

    start: Callable[[], Engine]
    small: int = SMALL
    on_progress: Callable[[int, int], None] = lambda ended, planned: None

    def ranks(self, path: str | Place) -> RunRanks:
        """Return the ranks of a path; those that cannot be read are caveats of the run. Raises UnreadableInput."""
        reader = self._reader()
        return reader.ranks(read(path, reader=reader.read))

    def arms(self, path: str | Place) -> tuple[RunRanks, ...]:
        """Return the ranks of every arm of a recorded run, in the recipe's order. Raises UnreadableInput."""
        reader = self._reader()
        return tuple(map(reader.ranks, read_arms(path, reader=reader.read)))

    def _reader(self) -> RankReader:
        how = How(strict=False, step=None)
        return RankReader((STEP_TOTALS,), how, self.small, self.start, self.on_progress)
