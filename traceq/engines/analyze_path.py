"""Analysis of any path, whatever the number of ranks: each rank is read and summarised, and the summaries merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from traceq.analysis.registry import analysis, chosen, describe, plugin_caveats, sheet
from traceq.engines.cache import How
from traceq.engines.engine import Start
from traceq.engines.rank_reader import RankReader
from traceq.locations import Place
from traceq.model import Run
from traceq.report import Sheet
from traceq.runs.read import read
from traceq.runs.single_step import only_step, with_step

__all__ = ["SMALL", "sheet_of", "with_ranks"]

SMALL = 64_000_000
"""Uncompressed bytes of traces that are read in this process, faster than others could be started."""


def sheet_of(
    path: str | Place,
    only: Sequence[str] = (),
    *,
    start: Start,
    strict: bool = False,
    step: int | None = None,
    ranks: set[int] | None = None,
    small: int = SMALL,
    on_progress: Callable[[int, int], None] = lambda ended, planned: None,
) -> tuple[Sheet, Run]:
    """Return (sheet with all or `only` some analyses of a path, or of one `step`; the run, without traces if large).

    The sheet is the same whichever engine reads the ranks. A folder whose traces have at most `small` bytes in total is
    read in this process. Ranks that cannot be read become caveats. Raises UnreadableInput, and UsageFault for an
    unknown analysis.
    """
    names = chosen(only)
    with ExitStack() as stack:
        reader = RankReader(names, How(strict, step), small, lambda: stack.enter_context(start()), on_progress)
        run = read(path, strict=strict, ranks=ranks, reader=reader.read)
        if not reader.summaries:
            run = run if step is None else only_step(run, step)
            return sheet(run, only), run
        run = run if step is None else with_step(run, step, reader.numbers(run))
        job = reader.job(run)
        reports = tuple(analysis(name).merge(job, reader.parts(run, name)) for name in names)
        num_events = sum(rank.num_events for rank in job.ranks)
        source, caveats = replace(describe(run), num_events=num_events), (*run.caveats, *plugin_caveats(only))
        return Sheet(source, reports, caveats), replace(run, traces=())


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
