"""The ranks of a run, whether their events are in memory or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from traceq.facts.ranks.job import Job, LazySequence, job_of
from traceq.facts.ranks.step_totals import StepTotals, step_totals
from traceq.frozen import frozen
from traceq.model import Run, Trace

__all__ = ["RunRanks", "ranks_in_memory"]


@frozen(eq=False)
class RunRanks:
    """R ranks of a run as a job, and the sums over their steps.

    The traces of `run` may lack their events; `trace` returns that of a rank with its events, reading it if need be.
    """

    run: Run
    job: Job
    totals: Sequence[StepTotals]
    trace: Callable[[int], Trace]


def ranks_in_memory(run: Run) -> RunRanks:
    """Return the ranks of a run whose traces have their events."""
    totals = LazySequence(lambda index: step_totals(run.traces[index]), len(run.traces))
    return RunRanks(run, job_of(run), totals, {trace.rank: trace for trace in run.traces}.__getitem__)
