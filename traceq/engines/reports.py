"""A sheet of any path, however many ranks it holds: read one by one, summarised, merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from traceq.analysis.registry import analysis, chosen, describe, sheet
from traceq.engines.cache import How
from traceq.engines.engine import Start
from traceq.engines.rank_reader import Ranks
from traceq.locations import Place
from traceq.model import Run
from traceq.report import Sheet
from traceq.runs.read import read
from traceq.runs.single_step import only_step, with_step

__all__ = ["SMALL", "sheet_of"]

SMALL = 64_000_000
"""Bytes of traces, uncompressed, that are read before processes have started."""


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
    """(all analyses of the run at a path, or some, or of one `step`; the run, without traces where they did not stay in
    memory): the same whatever engine reads the ranks.

    A folder whose traces have no more than `small` bytes in all is read here. Of a rank that cannot be read a caveat
    tells. Raises UnreadableInput, and UsageFault for an analysis that is none.
    """
    names = chosen(only)
    with ExitStack() as stack:
        found = Ranks(names, How(strict, step), small, lambda: stack.enter_context(start()), on_progress)
        run = read(path, strict=strict, ranks=ranks, each=found.read)
        if not found.summaries:
            run = run if step is None else only_step(run, step)
            return sheet(run, only), run
        run = run if step is None else with_step(run, step, found.numbers(run))
        job = found.job(run)
        reports = tuple(analysis(name).merge(job, found.parts(run, name)) for name in names)
        num_events = sum(rank.num_events for rank in job.ranks)
        return Sheet(replace(describe(run), num_events=num_events), reports, run.caveats), replace(run, traces=())
