"""Tables of any path, rank by rank: from traces in memory where they are small, else from an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from traceq.engines.analyze_path import SMALL
from traceq.engines.cache import How
from traceq.engines.engine import Start
from traceq.engines.rank_reader import RankReader
from traceq.engines.rank_summary import STEP_TOTALS
from traceq.frames.column_table import Frame
from traceq.frames.tables import rank_frames
from traceq.locations import Place
from traceq.model import Run
from traceq.runs.read import read, with_traces

__all__ = ["RankTables", "opened_tables"]

RankTables = Callable[[Sequence[str]], Iterator[tuple[Frame, ...]]]
"""Function that yields the tables of these names of one rank after the other."""

_TOGETHER = 64
"""Ranks whose tables an engine makes before they are yielded: what is in memory does not grow with their number."""


@contextmanager
def opened_tables(
    path: str | Place,
    *,
    start: Start,
    small: int = SMALL,
    ranks: set[int] | None = None,
    on_progress: Callable[[int, int], None] = lambda ended, planned: None,
) -> Iterator[tuple[Run, RankTables]]:
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
