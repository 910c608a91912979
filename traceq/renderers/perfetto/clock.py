"""The ranks of a run on one clock, and how long each waits for the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.ranks.job import job_of
from traceq.model import Run

__all__ = ["OneClock", "one_clock"]


@dataclass(frozen=True, slots=True, eq=False)
class OneClock:
    """For R traces: `offset` int64[R] ns to add to their times; `waiting` R times int64[N] ns that the rank waits for
    others in the collective call of each row of Events, -1 where that is not known.
    """

    offset: NDArray[np.int64]
    waiting: tuple[NDArray[np.int64], ...]


def one_clock(run: Run) -> OneClock:
    """Absolute times, each rank's clock set right by as much as collectives tell; ranks of several jobs as they are."""
    waiting = tuple(np.full(len(trace.events), -1) for trace in run.traces)
    offset = np.array([trace.base_time_ns for trace in run.traces], np.int64)
    job = job_of(run)
    if len(run.traces) < 2 or not job.is_one:
        return OneClock(offset, waiting)
    issued, found = job.issued, job.waits
    index = {trace.rank: at for at, trace in enumerate(run.traces)}
    offset[[index[rank] for rank in issued.ranks]] -= np.rint(np.nan_to_num(job.clocks.ahead)).astype(np.int64)
    for at, rank in enumerate(issued.ranks):
        calls = found.instances.call[:, at]
        ran = np.flatnonzero((calls >= 0) & (found.wait[:, at] >= 0))
        waiting[index[rank]][issued.called.row[calls[ran]]] = found.wait[ran, at]
    return OneClock(offset, waiting)
