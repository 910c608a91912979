"""What the viewer opens with: a time range, the costliest sync or the longest step, and commands to run after loading.

The commands pin tracks, expand a process, and run a query. Times of all ranks are on a common clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.claims.claim import Claim
from traceq.claims.saying import text_of
from traceq.errors import UnreadableInput
from traceq.facts.ranks.job import job_of
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.model import Run, Trace
from traceq.renderers.limits import PLACE_MARGIN


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


_PINNED = "findings|steps|phases|where the time goes|syncs|collectives|queue depth"
_PINNED_OF_ALL = "where the time goes"

_SUMS = f"""select process.name as rank, slice.name as what, count(*) as num, sum(slice.dur) / 1e6 as ms
from slice join process_track on slice.track_id = process_track.id join process using (upid)
where process_track.name glob '{_PINNED_OF_ALL}*' group by 1, 2 order by 1, 4 desc"""

Command = tuple[str, tuple[str, ...]]


@frozen
class WorstPlace:
    """Time range of one rank, [start_ns, end_ns) as in the exported file, and the reason to look at it."""

    rank: int
    start_ns: int
    end_ns: int
    why: str


def worst_place(run: Run, findings: Sequence[Claim]) -> WorstPlace:
    """Return the costliest sync of the first finding about syncs; without one, the longest step."""
    clock = common_clock(run)
    for finding in findings:
        costs = [syncs(trace).cost[syncs_of(trace, finding)].max(initial=0) for trace in run.traces]
        index = int(np.argmax(costs))
        if costs[index] > 0:
            return _around_sync(run.traces[index], finding, int(clock.offset[index]))
    windows = [steps(trace).window[steps(trace).counted] for trace in run.traces]
    index = int(np.argmax([(window[:, 1] - window[:, 0]).max() for window in windows]))
    window, offset_ns = windows[index], int(clock.offset[index])
    start, end = window[np.argmax(window[:, 1] - window[:, 0])].tolist()
    why = "the longest step" if steps(run.traces[index]).marked else "the whole trace"
    return WorstPlace(run.traces[index].rank, start + offset_ns, end + offset_ns, why)


def syncs_of(trace: Trace, finding: Claim) -> NDArray[np.int64]:
    """Return the indices into Syncs of those that a finding is about."""
    rank_syncs, site = syncs(trace), finding.subject
    if not site.kind:
        return np.empty(0, np.int64)
    origin = rank_syncs.origin
    ops, lines = (np.array([text == name for text in origin.texts], np.bool_) for name in (site.op, site.line))
    is_kind = rank_syncs.kind == SYNC_KINDS.index(site.kind)
    return np.flatnonzero(is_kind & ops[origin.op] & lines[origin.line])


def _around_sync(trace: Trace, finding: Claim, offset_ns: int) -> WorstPlace:
    rank_syncs, rows = syncs(trace), syncs_of(trace, finding)
    worst = rows[np.argmax(rank_syncs.cost[rows])]
    start, blocked = int(rank_syncs.start[worst]) + offset_ns, int(rank_syncs.blocked[worst])
    margin = PLACE_MARGIN * max(blocked, int(rank_syncs.cost[worst]))
    return WorstPlace(trace.rank, start - margin, start + blocked + margin, text_of(finding))


def startup_commands(place: WorstPlace) -> tuple[Command, ...]:
    """Return commands (id, arguments): expand the rank, pin its derived tracks, show sums by category.

    Of other ranks only the track `where the time goes` is pinned.
    """
    return (
        ("dev.perfetto.PinTracksByRegex", (rf"^({_PINNED})( · rank {place.rank})?$|^{_PINNED_OF_ALL} · rank \d+$",)),
        ("dev.perfetto.ExpandTracksByRegex", (rf"^rank {place.rank}\b",)),
        ("dev.perfetto.RunQueryAndShowTab", (_SUMS,)),
    )


def pair_commands() -> tuple[Command, ...]:
    """Return the commands for a pair: pin the derived tracks of both sides, A above B."""
    return (
        ("dev.perfetto.PinTracksByRegex", (rf"^(what differs|{_PINNED}) · [AB] |^B is behind A",)),
        ("dev.perfetto.ExpandTracksByRegex", ("^[AB] ",)),
        ("dev.perfetto.RunQueryAndShowTab", (_SUMS,)),
    )
