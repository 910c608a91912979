"""The critical path of a job's steps: along one rank's own path, and on that of whoever it waits for in a collective.

Back from the last end of any rank; where the path comes to a collective in which this rank waits for a later one, the
collective counts from the latest start only, and what led to that start is looked for on the rank that came last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import collective_calls, collective_kernels
from traceq.facts.comm.rank_collectives import own_calls
from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.arrival_waits import latest_rank
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.stalls.critical_path import CriticalPath, edges_back, last_work, path_through
from traceq.facts.stalls.replay import lasts
from traceq.facts.timeline.steps import steps
from traceq.intervals import Spans
from traceq.model import Caveat, Trace

__all__ = ["JobPath", "Legs", "Trail", "job_path", "path_along", "trail"]

_MOST_RANKS = 32
"""Ranks that the path may lead through: what it passes on each of them is read from the events."""

Legs = NDArray[np.int64]
"""int64[L, 3]: times on one rank, (start, end) ns by its own clock, up to the start of a piece of its device work, or
to a step's end (-1)."""


@dataclass(frozen=True, slots=True, eq=False)
class Trail:
    """What the path of one rank comes to, of its C own calls and K steps.

    `work` int64[C]: index into DeviceWork of what begins each call on the device, -1 where it launched nothing;
    `start`, `end` int64[C] ns of that; `onward` int64[C]: the call that the path comes to next, back from what led to
    that, -1 for none. `lasts` int64[K] ns, from the start of each window to the end of the last thing that was launched
    in the step; `last` int64[K]: the call that the path comes to first from there, -1 for none, or if the step began
    after `until` int64[K] ns.
    """

    work: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    onward: NDArray[np.int64]
    lasts: NDArray[np.int64]
    last: NDArray[np.int64]
    until: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class JobPath:
    """`number` int64[K] of ProfilerStep#N; `window` int64[K, 2] ns, the job's steps on one clock: each begins with the
    end of the one before, the first with the last rank. `legs` of R ranks: what of the steps is spent on each; together
    they are as long as the steps. `ahead` int64[R] ns, to take from the own clock's times.
    """

    number: NDArray[np.int64]
    window: Spans
    legs: tuple[Legs, ...]
    ahead: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Meetings:
    """B collectives among R ranks: `call` int64[B, R], the rank's own call if that began device work, else -1; `wait`
    int64[B, R] ns, 0 where it is less than the clocks can tell; `latest` int64[B] the rank that came last.
    """

    call: NDArray[np.int64]
    wait: NDArray[np.int64]
    latest: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Leg:
    """Time on one rank, ns by the common clock: up to the start of the own `call`, or to the step's end (-1)."""

    rank: int
    start: int
    end: int
    call: int


def trail(trace: Trace) -> Trail:
    """What the path of a trace comes to."""
    back, work, found = edges_back(trace), device_work(trace), steps(trace)
    begins = _first_work(trace, own_calls(trace).called.row)
    calls = np.flatnonzero(begins >= 0)
    next_call = np.full(len(work), -1)
    next_call[begins[calls]] = calls
    next_call = _next(next_call, back.to)
    onward, last = np.full(len(begins), -1), np.full(len(found), -1)
    led = calls[back.to[begins[calls]] >= 0]
    onward[led] = next_call[back.to[begins[led]]]
    long = lasts(trace)
    ends_with, until = last_work(trace, found.window[:, 0] + long)
    last[ends_with >= 0] = next_call[ends_with[ends_with >= 0]]
    start, end = np.full((2, len(begins)), -1)
    start[calls], end[calls] = work.start[begins[calls]], work.end[begins[calls]]
    return Trail(begins, start, end, onward, long, last, until)


def path_along(trace: Trace, legs: Legs) -> CriticalPath:
    """What the legs of one rank lead through."""
    return path_through(trace, *legs.T)


def job_path(job: Job, trails: Sequence[Trail]) -> JobPath | Caveat | None:
    """The path through the steps that all ranks counted; a caveat where the ranks cannot be set against each other,
    None where there is no device, or no rank that another could wait for.
    """
    if len(job.ranks) < 2 or not all(rank.has_device for rank in job.ranks):
        return None
    if not job.is_one:
        return _none("the traces were recorded one after the other")
    if len(job.issued) == 0:
        return None
    offset = job.clocks.ahead
    if job.issued.ranks != tuple(rank.rank for rank in job.ranks) or np.isnan(offset).any():
        return _none("the ranks' clocks cannot be set against each other")
    ahead = np.rint(offset).astype(np.int64) - np.array([rank.base_time_ns for rank in job.ranks])
    number, window, last = _steps(job.ranks, trails, ahead)
    if len(number) == 0:
        return _none("no step was counted on all ranks")
    meetings = _meetings(job, trails)
    stops = [_stops(own, meetings.wait[:, at], meetings.call[:, at]) for at, own in enumerate(trails)]
    legs = [
        leg
        for (start, end), rank, first in zip(window.tolist(), last[0].tolist(), last[1].tolist(), strict=True)
        for leg in _legs(trails, meetings, stops, ahead, _Leg(rank, start, end, first))
    ]
    num_ranks = len({leg.rank for leg in legs if leg.end > leg.start})
    if num_ranks > _MOST_RANKS:
        return _none(f"it leads through {num_ranks} of {len(job.ranks)} ranks, more than the {_MOST_RANKS} to look at")
    own = (_own(trails[at], [leg for leg in legs if leg.rank == at], shift) for at, shift in enumerate(ahead.tolist()))
    return JobPath(number, window, tuple(own), ahead)


def _none(why: str) -> Caveat:
    return Caveat("no_job_path", f"no critical path across ranks: {why}")


def _steps(
    ranks: Sequence[Outline], trails: Sequence[Trail], ahead: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Spans, NDArray[np.int64]]:
    """(number int64[K], window int64[K, 2] ns on one clock, int64[2, K]: index of the rank that is last to end, and the
    own call to which its path comes first).
    """
    found = [rank.steps for rank in ranks]
    common = set.intersection(*(set(own.number[own.counted].tolist()) for own in found))
    number = np.array(sorted(common) if len({own.marked for own in found}) == 1 else [], np.int64)
    start, end, first, until = np.empty((4, len(ranks), len(number)), np.int64)
    for at, (own, its) in enumerate(zip(found, trails, strict=True)):
        mine = [int(np.flatnonzero((own.number == one) & own.counted)[0]) for one in number.tolist()]
        start[at] = own.window[mine, 0] - ahead[at]
        end[at] = start[at] + its.lasts[mine]
        first[at], until[at] = its.last[mine], its.until[mine] - ahead[at]
    reach = np.maximum.accumulate(end.max(axis=0, initial=np.iinfo(np.int64).min))
    window = np.column_stack([np.maximum(start.max(axis=0), np.r_[start[:, :1].max(axis=0), reach[:-1]]), reach])
    last, each = end.argmax(axis=0), np.arange(len(number))
    comes_to = np.where(window[:, 0] < until[last, each], first[last, each], -1)
    is_some = window[:, 1] > window[:, 0]
    return number[is_some], window[is_some], np.stack([last, comes_to])[:, is_some]


def _meetings(job: Job, trails: Sequence[Trail]) -> _Meetings:
    """The collectives that wait for all, by the own call that begins them on each rank."""
    found = job.waits
    each, latest = np.arange(len(found)), latest_rank(found)
    within = np.nan_to_num(job.clocks.uncertainty[found.instances.group])
    called = found.instances.call
    call = np.where(called >= 0, job.issued.nth[called], -1)
    for at, own in enumerate(trails):
        mine = np.flatnonzero(call[:, at] >= 0)
        call[mine[own.work[call[mine, at]] < 0], at] = -1
    sure = found.wait > within + within[each, latest][:, None]
    sure &= (call >= 0) & (call[each, latest] >= 0)[:, None]
    sure[each, latest] = False
    return _Meetings(call, np.where(sure, found.wait, 0), latest)


def _first_work(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index into DeviceWork of the first work of the call of each row, -1 for one that launched none."""
    calls, kernels = collective_calls(trace), collective_kernels(trace)
    linked = kernels.call >= 0
    none = len(device_work(trace))
    of_row = np.full(len(trace.events), none)
    np.minimum.at(of_row, calls.rows[kernels.call[linked]], kernels.work[linked])
    return np.where(of_row[rows] < none, of_row[rows], -1)


def _next(marked: NDArray[np.int64], to: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[N]: the first mark (not -1) that is met from each of N places, itself included, on the way that `to` leads;
    -1 where none is met.
    """
    here = np.arange(len(to))
    jump = np.where((marked >= 0) | (to < 0), here, to)
    for _ in range(len(here).bit_length()):
        jump = jump[jump]
    return marked[jump]


def _stops(own: Trail, wait: NDArray[np.int64], call: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[C]: index of the first collective that the path meets back from each own call, itself included, in which
    this rank waits; -1 where it meets none.
    """
    meeting = np.full(len(own.work), -1)
    meeting[call[wait > 0]] = np.flatnonzero(wait > 0)
    return _next(meeting, own.onward)


def _legs(
    trails: Sequence[Trail],
    meetings: _Meetings,
    stops: Sequence[NDArray[np.int64]],
    ahead: NDArray[np.int64],
    step: _Leg,
) -> list[_Leg]:
    """The path of one step, from its end to its start; a collective is left for another rank but once. The call of
    `step` is the one to which the path comes first, -1 without one.
    """
    legs, seen = [], set[int]()
    rank, time, call, comes_to = step.rank, step.end, -1, step.call
    while True:
        met = int(stops[rank][comes_to]) if comes_to >= 0 else -1
        free = met < 0 or met in seen
        cut = step.start if free else min(_all_came(trails[rank], meetings, met, rank) - int(ahead[rank]), time)
        legs.append(_Leg(rank, max(cut, step.start), time, call))
        if cut <= step.start:
            return legs
        seen.add(met)
        rank, time = int(meetings.latest[met]), cut
        call = int(meetings.call[met, rank])
        comes_to = int(trails[rank].onward[call])


def _all_came(own: Trail, meetings: _Meetings, met: int, rank: int) -> int:
    """When the last rank came to a collective, ns by the clock of one that waits in it."""
    call = meetings.call[met, rank]
    return int(min(own.start[call] + meetings.wait[met, rank], own.end[call]))


def _own(own: Trail, legs: Sequence[_Leg], ahead: int) -> Legs:
    """The legs of one rank by its own clock."""
    legs = sorted((leg for leg in legs if leg.end > leg.start), key=lambda leg: leg.start)
    rows = [(leg.start + ahead, leg.end + ahead, int(own.work[leg.call]) if leg.call >= 0 else -1) for leg in legs]
    return np.array(rows, np.int64).reshape(-1, 3)
