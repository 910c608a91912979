"""One rank's part of a job without devices: one line of the host, and the collectives that gloo's threads run.

The host waits for a collective where it computes nothing until that ends.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.rank_collectives import rank_calls
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.intervals import contains, measure_within, sorted_unique, span_index, spans
from traceq.model import Trace
from traceq.whatif.rank_part import RankPart, rank_facts

__all__ = ["host_part"]

_LEAST_WAIT_NS = 20_000
"""The host waited for a collective if it computed nothing for so long before that ended."""

_AT_ONCE_NS = 200_000
"""A collective that begins so soon after another one, and was issued before that ended, had to wait for it."""


def host_part(trace: Trace, counted: NDArray[np.bool_]) -> RankPart:
    """Return the part of a rank: moments of the host, then start and end of each collective.

    `counted` bool[K]: the steps that means are taken over.
    """
    all_steps, calls = steps(trace), rank_calls(trace).columns
    ran = np.flatnonzero(calls.start >= 0)
    ran = ran[np.argsort(calls.start[ran], kind="stable")]
    issued, start, end = (column[ran] - trace.base_time_ns for column in (calls.issued_ns, calls.start, calls.end))
    issued = np.minimum(issued, start)
    idle = activity(trace).when(TimeCategory.EXPOSED_COMM)
    wait = span_index(idle, end - 1)
    waited = (wait >= 0) & (end > issued)
    waited[waited] = end[waited] - _begin(idle, end[waited]) >= _LEAST_WAIT_NS
    host_times = sorted_unique(all_steps.host.ravel(), issued, end[waited])
    num, place = len(host_times), 1 + np.arange(len(host_times))
    return_of, issue_of = (np.searchsorted(host_times, moments) + 1 for moments in (end, issued))
    start_of = 1 + num + 2 * np.arange(len(ran))
    waits = spans(*_waits(idle, host_times, end[waited]))
    before = np.r_[host_times[:1], host_times[:-1]]
    host_ns = host_times - before - measure_within(waits, before, host_times)
    follows, previous, gap = _queued(issued, start, end)
    lag = start - issued
    alone = np.setdiff1d(np.arange(len(ran)), follows)
    usual = int(np.median(lag[alone])) if len(alone) else 0
    lag[follows] = np.minimum(lag[follows], usual)
    source = np.r_[np.r_[0, place[:-1]], issue_of, start_of, start_of[previous] + 1, start_of[waited] + 1]
    target = np.r_[place, start_of, start_of + 1, start_of[follows], return_of[waited]]
    weight = np.r_[host_ns, lag, end - start, gap, np.zeros(int(waited.sum()), np.int64)]
    time = np.r_[host_times[:1], host_times, np.column_stack([start, end]).ravel()]
    none, call = np.empty(0, np.int64), np.full(len(calls), -1)
    call[ran] = num + len(ran) + np.arange(len(ran))
    begins, ends = (1 + np.searchsorted(host_times, all_steps.host[:, [side]]) for side in (0, 1))
    is_counted = contains(spans(*all_steps.host[counted].T), time[source])
    return RankPart(
        trace=trace,
        facts=rank_facts(trace, counted, waits),
        time=time,
        source=source,
        target=target,
        observed=weight,
        loosest=weight,
        host=np.arange(1, num),
        chain=np.zeros(num - 1, np.int64),
        waits=waits,
        launch=none,
        work=np.full(len(source), -1),
        held=none,
        hold=none,
        without=none,
        counted=is_counted,
        call=call,
        begins=begins,
        ends=ends,
        host_begins=begins[:, :0],
        host_ends=ends[:, :0],
        counted_steps=counted,
        communication=np.flatnonzero(np.isin(np.arange(len(source)), call) & is_counted),
    )


def _waits(
    idle: NDArray[np.int64], host_times: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (start, end) of the waits up to some ends: since the host's moment before, or since it was last busy."""
    since = np.maximum(host_times[np.maximum(np.searchsorted(host_times, end) - 1, 0)], _begin(idle, end))
    return np.minimum(since, end), end


def _begin(idle: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    return idle[span_index(idle, end - 1), 0] if len(end) else end


def _queued(
    issued: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (collectives that had to wait for another one, that one, ns between them), given in order of start."""
    by_end = np.argsort(end, kind="stable")
    last = np.searchsorted(end[by_end], start, "right") - 1
    previous = np.r_[by_end, -1][last]
    gap = start - np.r_[end, 0][previous]
    is_earlier = (last >= 0) & (np.r_[start, 0][previous] < start) & (np.r_[end, 0][previous] > issued)
    follows = np.flatnonzero(is_earlier & (gap <= _AT_ONCE_NS))
    return follows, previous[follows], gap[follows]
