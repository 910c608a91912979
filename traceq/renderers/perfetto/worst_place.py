"""What the viewer opens with: a time range, the costliest sync or the longest step, and commands to run after loading.

The commands pin tracks, expand a process, and run a query.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.claims.claim import Claim
from traceq.claims.saying import text_of
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.model import Run, Trace
from traceq.renderers.limits import PLACE_MARGIN
from traceq.renderers.perfetto.clock import common_clock

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
