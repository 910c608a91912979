"""Time range that the viewer opens at: the costliest sync, or the longest step."""

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
from traceq.renderers.perfetto.clock import common_clock

__all__ = ["WorstPlace", "syncs_of", "worst_place"]

_AROUND = 3
"""Margin on either side of a sync, as a multiple of its duration."""


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
    margin = _AROUND * max(blocked, int(rank_syncs.cost[worst]))
    return WorstPlace(trace.rank, start - margin, start + blocked + margin, text_of(finding))
