"""Exposed communication divided in waiting for the last rank to arrive, and transfer.

Only the transfer can be overlapped or made smaller; the waiting is the lateness of another rank.
"""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import rows_named
from traceq.facts.memo import once_per_trace
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import Spans, empty, measure_within, span_index, spans, union
from traceq.model import Category, Trace

_BARRIER = re.compile(r"^gloo:(monitored_)?barrier")
EXPOSED_WAIT, EXPOSED_TRANSFER = "exposed_wait", "exposed_transfer"
"""Categories that together are `exposed_comm`, where traces of several ranks tell them apart."""


@once_per_trace
def barriers(trace: Trace) -> Spans:
    """Return when a thread is in a barrier."""
    events = trace.events
    rows = rows_named(events, _BARRIER, Category.ANNOTATION, Category.CPU_OP)
    return spans(events.ts[rows], events.end[rows])


@frozen(eq=False)
class ExposedPieces:
    """Pieces of one rank's steps in which only collectives run.

    `parts` int64[M, 2] ns by the trace's clock; `step` int64[M] into its steps; `phase` int32[M] into `phases`.
    `barriers`: when it is in one, which transfers nothing.
    """

    parts: Spans
    step: NDArray[np.int64]
    phase: NDArray[np.int32]
    phases: tuple[str, ...]
    barriers: Spans

    def waits_by_step_and_phase(self, waiting: Spans) -> dict[tuple[int, str], int]:
        """Return the part of the pieces, ns, in which this rank waits, by (step, phase): in barriers all of it."""
        ns = measure_within(union(waiting, self.barriers), self.parts[:, 0], self.parts[:, 1])
        cells = group([self.step, self.phase])
        keyed = zip(cells.keys.tolist(), cells.sum(ns), strict=True)
        return {(step, self.phases[phase]): total_ns for (step, phase), total_ns in keyed}


def exposed_pieces(trace: Trace) -> ExposedPieces:
    """Return the pieces of a trace's steps in which only collectives run."""
    pieces = activity(trace)
    step = span_index(steps(trace).window, pieces.parts[:, 0])
    selected = pieces.among(TimeCategory.EXPOSED_COMM) & (step >= 0)
    names = phases(trace).names
    return ExposedPieces(pieces.parts[selected], step[selected], pieces.phase[selected], names, barriers(trace))


def waiting_times(job: Job, collectives: Literal["all", "first", "later"] = "all") -> dict[int, Spans]:
    """Return, by rank, when it waits in collectives for the last rank to arrive, by the clock of its trace.

    Without ranks that have no collective that all ranks of a group ran, or for whose waits there is no time: of these
    it is not known. Waits in the `first`
    collective of a group are no transfer, but no rank's lateness either, as profilers start one after the other.
    """
    issued, waits = job.issued, job.waits
    chosen = {"all": waits.possible, "first": waits.possible & ~waits.counted, "later": waits.counted}[collectives]
    base_ns = {rank.rank: rank.base_time_ns for rank in job.ranks}
    result = {}
    for index, rank in enumerate(issued.ranks):
        selected = np.flatnonzero(chosen & (waits.wait[:, index] >= 0)) if len(waits) else np.empty(0, np.int64)
        if len(selected):
            start = issued.columns.start[waits.instances.call[selected, index]] - base_ns[rank]
            result[rank] = spans(start, start + waits.wait[selected, index])
    return result


def exposed_waiting_times(job: Job) -> dict[int, Spans]:
    """Return, by rank, when it waits in collectives or for the other side of a message, by the clock of its trace.

    To be used within exposed communication: a rank may compute while a message waits.
    """
    result, messages = waiting_times(job), job.messages
    for index, rank in enumerate(job.ranks):
        selected = np.flatnonzero((messages.rank == index) & (messages.partner >= 0))
        if len(selected):
            shift = int(messages.offset[index]) - rank.base_time_ns
            waits = spans(messages.start[selected], messages.both_started[selected]) + shift
            result[rank.rank] = union(result.get(rank.rank, empty()), waits)
    return result
