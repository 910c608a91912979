"""Analysis of any path, and its ranks for a diff or as tables, whatever their number: many are read by an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from traceq.analysis.registry import analysis, chosen, describe, merged, plugin_caveats, reports_of
from traceq.engines.cache import How
from traceq.engines.rank_reader import Engine, RankReader, Start
from traceq.engines.rank_summary import STEP_TOTALS
from traceq.facts.ranks.job import Job, RunRanks, job_of
from traceq.facts.timeline.single_step import only_step, with_step
from traceq.frozen import frozen
from traceq.locations import Place
from traceq.model import Run
from traceq.report import Report, Sheet
from traceq.runs.read import read, read_arms, with_traces
from traceq.stages import counted

if TYPE_CHECKING:
    from traceq.frames.tables import Frame
SMALL = 64_000_000
"""Uncompressed bytes of traces that are read in this process, faster than others could be started."""


@frozen(eq=False)
class AnalyzedPath:
    """A run, its traces without events unless `is_in_memory`; its ranks as a job; the reports of some analyses."""

    run: Run
    job: Job
    reports: tuple[Report, ...]
    is_in_memory: bool


def analyze_path(
    path: str | Place,
    only: Sequence[str] = (),
    *,
    start: Start,
    strict: bool = False,
    step: int | None = None,
    ranks: set[int] | None = None,
    small: int = SMALL,
    beside: Sequence[Place] = (),
    on_progress: Callable[[int, int], None] = lambda ended, planned: None,
) -> AnalyzedPath:
    """Return all or `only` some analyses of a path, or of one `step`.

    They are the same whichever engine reads the ranks. A folder whose traces have at most `small` bytes in total is
    read in this process. Files `beside` a trace may hold what it replays. Ranks that cannot be read become caveats, or
    with `strict` a fault. Raises UnreadableInput, and UsageFault for an unknown analysis.
    """
    names = chosen(only)
    with ExitStack() as stack:
        reader = RankReader(names, How(strict, step), small, lambda: stack.enter_context(start()), on_progress)
        run = read(path, strict=strict, ranks=ranks, reader=reader.read, beside=beside)
        if not reader.summaries:
            run = run if step is None else only_step(run, step)
            job = job_of(run)
            return AnalyzedPath(run, job, reports_of(job, run.traces, names), is_in_memory=True)
        run = run if step is None else with_step(run, step, reader.numbers(run))
        job = reader.job(run)
        parts = ((analysis(name), reader.parts(run, name)) for name in counted("merging ranks", names))
        reports = tuple(merged(module, job, of_ranks) for module, of_ranks in parts)
        return AnalyzedPath(run, job, reports, is_in_memory=False)


def sheet_of(
    path: str | Place,
    only: Sequence[str] = (),
    *,
    start: Start,
    strict: bool = False,
    step: int | None = None,
    ranks: set[int] | None = None,
    small: int = SMALL,
    beside: Sequence[Place] = (),
    on_progress: Callable[[int, int], None] = lambda ended, planned: None,
) -> tuple[Sheet, Run]:
    """Return (sheet with all or `only` some analyses; the run, without traces if large).

    The other arguments, and what it raises, are those of `analyze_path`.
    """
    how = partial(analyze_path, start=start, strict=strict, step=step, ranks=ranks, small=small, beside=beside)
    analyzed = how(path, only, on_progress=on_progress)
    run = analyzed.run
    result = Sheet(describe(run, analyzed.job.ranks), analyzed.reports, (*run.caveats, *plugin_caveats(only)))
    return result, run if analyzed.is_in_memory else replace(run, traces=())


def with_ranks(
    run: Run, path: str | Place, ranks: Sequence[int], *, strict: bool = False, step: int | None = None
) -> Run:
    """Return the run with the traces of some ranks: read again where `sheet_of` kept none. Raises UnreadableInput.

    The other arguments are those of `sheet_of`, and the run that it returned.
    """
    if run.traces or not ranks:
        return run
    run = read(path, strict=strict, ranks=set(ranks))
    return run if step is None else only_step(run, step)


_RankTables: TypeAlias = "Callable[[Sequence[str]], Iterator[tuple[Frame, ...]]]"
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
    from traceq.frames.tables import rank_frames  # most commands show no tables of events

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
