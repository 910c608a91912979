"""The critical path of a job's steps: along one rank's own path, and on that of whoever it waits for in a collective.

Back from the last end of any rank; where the path comes to a collective in which this rank waits for a later one, the
collective counts from the latest start only, and what led to that start is looked for on the rank that came last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.intervals import Spans
from traceq.links.clocks import Clocks, clocks
from traceq.links.collectives import collective_calls, collective_kernels
from traceq.links.critical import CriticalPath, edges_back, last_work, path_through
from traceq.links.instances import match
from traceq.links.issued import Issued, are_of_one_job, issued_by_traces
from traceq.links.launches import device_work
from traceq.links.replay import lasts
from traceq.links.steps import steps
from traceq.links.waits import Waits, latest_rank, waits
from traceq.model import Caveat, Trace

__all__ = ["JobPath", "job_path"]


@dataclass(frozen=True, slots=True, eq=False)
class JobPath:
    """`number` int64[K] of ProfilerStep#N; `window` int64[K, 2] ns, the job's steps on one clock: each begins with the
    end of the one before, the first with the last rank. `paths` of R ranks: what of the steps is spent on each, by its
    own clock; together they are as long as the steps. `ahead` int64[R] ns, to take from the own clock's times."""

    number: NDArray[np.int64]
    window: Spans
    paths: tuple[CriticalPath, ...]
    ahead: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Meetings:
    """B collectives among R ranks: `work` int64[B, R] into DeviceWork, what begins it on each rank, -1 without one;
    `wait` int64[B, R] ns, 0 where it is less than the clocks can tell; `latest` int64[B] the rank that came last."""

    work: NDArray[np.int64]
    wait: NDArray[np.int64]
    latest: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Leg:
    """Time on one rank, ns by the common clock: up to the start of the work `before`, or to the step's end (-1)."""

    rank: int
    start: int
    end: int
    before: int


def job_path(traces: Sequence[Trace]) -> JobPath | Caveat | None:
    """The path through the steps that all ranks counted; a caveat where the ranks cannot be set against each other,
    None where there is no device, or no rank that another could wait for."""
    if len(traces) < 2 or not all(len(device_work(trace)) for trace in traces):
        return None
    if not are_of_one_job(traces):
        return _none("the traces were recorded one after the other")
    issued = issued_by_traces(traces)
    if len(issued) == 0:
        return None
    instances = match(issued)
    times = clocks(issued, instances)
    offset = times.ahead
    if issued.ranks != tuple(trace.rank for trace in traces) or np.isnan(offset).any():
        return _none("the ranks' clocks cannot be set against each other")
    ahead = np.rint(offset).astype(np.int64) - np.array([trace.base_time_ns for trace in traces])
    number, window, last = _steps(traces, ahead)
    if len(number) == 0:
        return _none("no step was counted on all ranks")
    meetings = _meetings(traces, issued, waits(issued, instances, times), times)
    stops = [_stops(trace, meetings.wait[:, at], meetings.work[:, at]) for at, trace in enumerate(traces)]
    own = [window + shift for shift in ahead.tolist()]
    ends_with = [last_work(trace, mine[:, 0], mine[:, 1]) for trace, mine in zip(traces, own, strict=True)]
    legs = [
        leg
        for at, ((start, end), rank) in enumerate(zip(window.tolist(), last.tolist(), strict=True))
        for leg in _legs(traces, meetings, stops, ahead, _Leg(rank, start, end, -1), int(ends_with[rank][at]))
    ]
    paths = tuple(
        _path(trace, [leg for leg in legs if leg.rank == at], int(ahead[at])) for at, trace in enumerate(traces)
    )
    return JobPath(number, window, paths, ahead)


def _none(why: str) -> Caveat:
    return Caveat("no_job_path", f"no critical path across ranks: {why}")


def _steps(traces: Sequence[Trace], ahead: NDArray[np.int64]) -> tuple[NDArray[np.int64], Spans, NDArray[np.int64]]:
    """(number int64[K], window int64[K, 2] ns on one clock, index of the rank that is last to end int64[K])."""
    found = [steps(trace) for trace in traces]
    common = set.intersection(*(set(own.number[own.counted].tolist()) for own in found))
    number = np.array(sorted(common) if len({own.marked for own in found}) == 1 else [], np.int64)
    start, end = np.empty((2, len(traces), len(number)), np.int64)
    for at, (trace, own) in enumerate(zip(traces, found, strict=True)):
        mine = [int(np.flatnonzero((own.number == one) & own.counted)[0]) for one in number.tolist()]
        start[at] = own.window[mine, 0] - ahead[at]
        end[at] = start[at] + lasts(trace)[mine]
    reach = np.maximum.accumulate(end.max(axis=0, initial=np.iinfo(np.int64).min))
    window = np.column_stack([np.maximum(start.max(axis=0), np.r_[start[:, :1].max(axis=0), reach[:-1]]), reach])
    is_some = window[:, 1] > window[:, 0]
    return number[is_some], window[is_some], end.argmax(axis=0)[is_some]


def _meetings(traces: Sequence[Trace], issued: Issued, found: Waits, times: Clocks) -> _Meetings:
    """The collectives that wait for all, by what begins them on each rank."""
    each, latest = np.arange(len(found)), latest_rank(found)
    within = np.nan_to_num(times.uncertainty[found.instances.group])
    work = np.full(found.wait.shape, -1)
    for at, trace in enumerate(traces):
        called = found.instances.call[:, at]
        work[called >= 0, at] = _first_work(trace, issued.called.row[called[called >= 0]])
    sure = found.wait > within + within[each, latest][:, None]
    sure &= (work >= 0) & (work[each, latest] >= 0)[:, None]
    sure[each, latest] = False
    return _Meetings(work, np.where(sure, found.wait, 0), latest)


def _first_work(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index into DeviceWork of the first work of the call of each row, -1 for one that launched none."""
    calls, kernels = collective_calls(trace), collective_kernels(trace)
    linked = kernels.call >= 0
    none = len(device_work(trace))
    of_row = np.full(len(trace.events), none)
    np.minimum.at(of_row, calls.rows[kernels.call[linked]], kernels.work[linked])
    return np.where(of_row[rows] < none, of_row[rows], -1)


def _stops(trace: Trace, wait: NDArray[np.int64], work: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[D]: index of the first collective that the path meets back from each piece of work, itself included, in
    which this rank waits; -1 where it meets none."""
    back = edges_back(trace)
    meeting = np.full(len(back.to), -1)
    meeting[work[wait > 0]] = np.flatnonzero(wait > 0)
    here = np.arange(len(back.to))
    jump = np.where((meeting >= 0) | (back.to < 0), here, back.to)
    for _ in range(len(here).bit_length()):
        jump = jump[jump]
    return meeting[jump]


def _legs(
    traces: Sequence[Trace],
    meetings: _Meetings,
    stops: Sequence[NDArray[np.int64]],
    ahead: NDArray[np.int64],
    step: _Leg,
    ends_with: int,
) -> list[_Leg]:
    """The path of one step, from its end to its start; a collective is left for another rank but once. `ends_with` is
    the work that the step ends with on its last rank, -1 without one."""
    legs, seen = [], set[int]()
    rank, time, before = step.rank, step.end, -1
    while True:
        trace, own = traces[rank], int(ahead[rank])
        first = int(edges_back(trace).to[before]) if before >= 0 else ends_with
        met = int(stops[rank][first]) if first >= 0 else -1
        cut = step.start if met < 0 or met in seen else min(_all_came(trace, meetings, met, rank) - own, time)
        legs.append(_Leg(rank, max(cut, step.start), time, before))
        if cut <= step.start:
            return legs
        seen.add(met)
        rank, time = int(meetings.latest[met]), cut
        before = int(meetings.work[met, rank])


def _all_came(trace: Trace, meetings: _Meetings, met: int, rank: int) -> int:
    """When the last rank came to a collective, ns by the clock of one that waits in it."""
    work, at = device_work(trace), meetings.work[met, rank]
    return int(min(work.start[at] + meetings.wait[met, rank], work.end[at]))


def _path(trace: Trace, legs: Sequence[_Leg], ahead: int) -> CriticalPath:
    """What the legs of one rank lead through."""
    legs = sorted((leg for leg in legs if leg.end > leg.start), key=lambda leg: leg.start)
    columns = np.array([(leg.start + ahead, leg.end + ahead, leg.before) for leg in legs], np.int64).reshape(-1, 3)
    return path_through(trace, *columns.T)
