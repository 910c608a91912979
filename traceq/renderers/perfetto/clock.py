"""Times of all ranks on a common clock, and the time each rank waits for others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.errors import UnreadableInput
from traceq.facts.ranks.job import job_of
from traceq.frozen import frozen
from traceq.model import Run, Trace


@frozen(eq=False)
class CommonClock:
    """Clock offsets and waiting times of R traces.

    `offset` int64[R] ns is added to their times. `waiting` is R times int64[N] ns, for each row of Events the time that
    the rank waits for others in this collective call; -1 = unknown.
    """

    offset: NDArray[np.int64]
    waiting: tuple[NDArray[np.int64], ...]


def common_clock(run: Run) -> CommonClock:
    """Return absolute times, with clocks of one job corrected by its collectives; other ranks keep their clocks."""
    waiting = tuple(np.full(len(trace.events), -1) for trace in run.traces)
    offset = np.array([trace.base_time_ns for trace in run.traces], np.int64)
    job = job_of(run)
    if len(run.traces) < 2 or not job.is_concurrent:
        return CommonClock(not_before_zero(run.traces, offset), waiting)
    issued, waits = job.issued, job.waits
    position = {trace.rank: index for index, trace in enumerate(run.traces)}
    offset[[position[rank] for rank in issued.ranks]] -= np.rint(np.nan_to_num(job.clocks.ahead)).astype(np.int64)
    for index, rank in enumerate(issued.ranks):
        calls = waits.instances.call[:, index]
        measured = np.flatnonzero((calls >= 0) & (waits.wait[:, index] >= 0))
        waiting[position[rank]][issued.columns.row[calls[measured]]] = waits.wait[measured, index]
    return CommonClock(not_before_zero(run.traces, offset), waiting)


def not_before_zero(traces: Sequence[Trace], offset: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[R] ns, the offsets of R traces, all larger by what keeps each event at 0 or later: Perfetto's range.

    Traces without an absolute time begin at 0, and one whose clock is corrected, or that is a diff's B, may be moved
    before that. Raises UnreadableInput where the events are further apart than int64 reaches.
    """
    shown = [(trace.events, ns) for trace, ns in zip(traces, offset.tolist(), strict=True) if len(trace.events)]
    earliest_ns = min([0, *(int(events.ts.min()) + ns for events, ns in shown)])
    latest_ns = max([0, *(int((events.ts + events.dur).max()) + ns for events, ns in shown)])
    if latest_ns - earliest_ns > np.iinfo(np.int64).max:
        raise UnreadableInput(traces[0].path, "centuries between its events", "events of one recording")
    return offset - np.int64(earliest_ns)
