"""The ranks of a run, in memory or not, and the sums over their steps by which two runs are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from traceq.facts.memo import once_per_trace
from traceq.facts.ranks.job import Job, LazySequence, job_of
from traceq.facts.ranks.unrecorded_share import unrecorded_share
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.frozen import frozen
from traceq.model import Run, Trace


@frozen
class StepTotals:
    """Number of a rank's counted steps, their ns, and those of exposed communication.

    `unrecorded_share` is the part of the trace in which the device does work that the trace does not show.
    """

    num: int
    ns: int
    exposed_ns: int
    unrecorded_share: float


@once_per_trace
def step_totals(trace: Trace) -> StepTotals:
    """Return the sums of one rank."""
    windows, pieces = steps(trace).window[steps(trace).counted], activity(trace)
    is_exposed = in_counted_steps(trace) & pieces.among(TimeCategory.EXPOSED_COMM)
    return StepTotals(
        num=len(windows),
        ns=int((windows[:, 1] - windows[:, 0]).sum()),
        exposed_ns=int(pieces.ns[is_exposed].sum()),
        unrecorded_share=unrecorded_share(trace),
    )


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
