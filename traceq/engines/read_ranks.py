"""Ranks of any path, for a diff or as tables: of many ranks by an engine, of few from their traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from traceq.engines.analyze_path import SMALL
from traceq.engines.cache import How
from traceq.engines.engine import Engine, Start
from traceq.engines.rank_reader import RankReader
from traceq.engines.rank_summary import STEP_TOTALS
from traceq.facts.ranks.run_ranks import RunRanks
from traceq.frames.tables import Frame, rank_frames
from traceq.frozen import frozen
from traceq.locations import Place
from traceq.model import Run
from traceq.runs.read import read, read_arms, with_traces

_RankTables = Callable[[Sequence[str]], Iterator[tuple[Frame, ...]]]
"""Function that yields the tables of these names of one rank after the other."""

_TOGETHER = 64
"""Ranks whose tables an engine makes before they are yielded: what is in memory does not grow with their number."""


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


@contextmanager
def opened_tables(
    path: str | Place,
    *,
    start: Start,
    small: int = SMALL,
    ranks: set[int] | None = None,
    on_progress: Callable[[int, int], None] = lambda ended, planned: None,
) -> Iterator[tuple[Run, _RankTables]]:
    """Yield the run at a path, its traces without events if large, and its tables, to be read within the block.

    They are the same whichever engine reads the ranks. Ranks that cannot be read are caveats of the run. Raises
    UnreadableInput.
    """
    with ExitStack() as stack:
        how = How(strict=False, step=None)
        reader = RankReader((STEP_TOTALS,), how, small, lambda: stack.enter_context(start()), on_progress)
        run = with_traces(read(path, ranks=ranks, reader=reader.read))

        def of_ranks(names: Sequence[str]) -> Iterator[tuple[Frame, ...]]:
            if not reader.summaries:
                yield from (rank_frames(trace, names) for trace in run.traces)
                return
            query, numbers = reader.job(run).query, [trace.rank for trace in run.traces]
            for first in range(0, len(numbers), _TOGETHER):
                yield from query(rank_frames, [(rank, names) for rank in numbers[first : first + _TOGETHER]])
                on_progress(min(first + _TOGETHER, len(numbers)), len(numbers))

        yield run, of_ranks
