"""Critical path of a job's steps: along one rank's path, then on the rank that it waits for in a collective.

It goes back from the latest end of any rank. Where it reaches a collective in which this rank waits for a later one,
the collective counts from the latest start only, and the path continues on the rank that arrived last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.causes.critical_path import CriticalPath, path_through
from traceq.causes.longest_path import next_marked
from traceq.causes.replay import replay_of
from traceq.causes.sentences import NO_PATH
from traceq.facts.comm.rank_collectives import first_work
from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.arrival_waits import latest_rank
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import Spans
from traceq.model import Caveat, Trace

_MAX_RANKS = 32
"""Limit on the ranks of a path: the events of each of them are read again."""

Legs = NDArray[np.int64]
"""int64[L, 3]: (start ns, end ns, index into DeviceWork) of times on one rank by its clock.

A leg ends with the start of that work, or with a step's end (-1).
"""


@frozen(eq=False)
class PathSummary:
    """Summary of one rank's critical path: the collective calls on it, of C calls and K steps.

    `work` int64[C]: index into DeviceWork of the first work of each call, -1 without any; `start`, `end` int64[C] ns of
    that work; `next_call` int64[C]: the next call on the path back from each, -1 for none. `duration` int64[K] ns of
    each step, up to the end of the last work launched in it; `last_call` int64[K]: the first call on the path back from
    there, -1 for none.
    """

    work: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    next_call: NDArray[np.int64]
    duration: NDArray[np.int64]
    last_call: NDArray[np.int64]


@frozen(eq=False)
class JobPath:
    """Critical path of K steps through R ranks.

    `number` int64[K] of ProfilerStep#N; `window` int64[K, 2] ns, the job's steps on one clock: each starts at the end
    of the one before, the first with the last rank to start. `legs` of R ranks: the parts of the path on each; together
    they are as long as the steps. `ahead` int64[R] ns, to subtract from times by a rank's clock.
    """

    number: NDArray[np.int64]
    window: Spans
    legs: tuple[Legs, ...]
    ahead: NDArray[np.int64]


@frozen(eq=False)
class _SharedCollectives:
    """B collectives among R ranks.

    `call` int64[B, R], the rank's call if it launched device work, else -1; `wait` int64[B, R] ns, 0 where it is below
    the uncertainty of the clocks; `latest` int64[B], the rank that arrived last.
    """

    call: NDArray[np.int64]
    wait: NDArray[np.int64]
    latest: NDArray[np.int64]


@frozen
class _Leg:
    """Time on one rank, ns by the common clock: up to the start of the rank's `call`, or to the step's end (-1)."""

    rank: int
    start: int
    end: int
    call: int


def path_summary(trace: Trace) -> PathSummary:
    """Return the summary of a trace's critical path."""
    replay, work, call_work = replay_of(trace), device_work(trace), first_work(trace)
    before = np.where(replay.choice >= 0, replay.graph.edges.source[replay.choice], -1)
    calls = np.flatnonzero(call_work >= 0)
    nodes, marked = replay.work_node[call_work[calls]], np.full(len(before), -1)
    marked[nodes] = calls
    next_call = np.r_[next_marked(marked, before), -1]
    following, start, end = np.full((3, len(call_work)), -1)
    following[calls] = next_call[before[nodes]]
    start[calls], end[calls] = work.start[call_work[calls]], work.end[call_work[calls]]
    return PathSummary(call_work, start, end, following, replay.step_ns, next_call[replay.last_nodes])


def path_along(trace: Trace, legs: Legs) -> CriticalPath:
    """Return the critical path along the legs of one rank."""
    replay = replay_of(trace)
    start, end, work = legs.T
    step = np.searchsorted(steps(trace).window[:, 0] + replay.step_ns, end, "left")
    nodes = np.where(work >= 0, replay.work_node[work], np.r_[replay.last_nodes, -1][step])
    return path_through(trace, start, end, nodes)


def job_path(job: Job, summaries: Sequence[PathSummary]) -> JobPath | Caveat | None:
    """Return the path through the steps that all ranks counted; a caveat where the ranks cannot be compared.

    None without a device, and for a single rank or one without collectives.
    """
    if len(job.ranks) < 2 or not all(rank.has_device for rank in job.ranks):
        return None
    if not job.is_concurrent:
        return _no_path("not_concurrent")
    if len(job.issued) == 0:
        return None
    offset = job.clocks.ahead
    if job.issued.ranks != tuple(rank.rank for rank in job.ranks) or np.isnan(offset).any():
        return _no_path("clocks")
    ahead = np.rint(offset).astype(np.int64) - np.array([rank.base_time_ns for rank in job.ranks])
    number, window, path_start = _steps(job.ranks, summaries, ahead)
    if len(number) == 0:
        return _no_path("no_common_step")
    shared = _shared_collectives(job, summaries)
    waits = [_next_wait(*columns) for columns in zip(summaries, shared.wait.T, shared.call.T, strict=True)]
    legs = [
        leg
        for (start, end), index, call in zip(window.tolist(), *path_start.tolist(), strict=True)
        for leg in _legs(summaries, shared, waits, ahead, _Leg(index, start, end, call))
    ]
    num_ranks = len({leg.rank for leg in legs if leg.end > leg.start})
    if num_ranks > _MAX_RANKS:
        return _no_path("too_many_ranks", num=num_ranks, num_ranks=len(job.ranks), most=_MAX_RANKS)
    by_rank = [[leg for leg in legs if leg.rank == index] for index in range(len(job.ranks))]
    rank_legs = map(_on_rank_clock, summaries, by_rank, ahead.tolist())
    return JobPath(number, window, tuple(rank_legs), ahead)


def _no_path(reason: str, **counts: int) -> Caveat:
    return Caveat("no_job_path", NO_PATH[reason].format(**counts))


def _steps(
    ranks: Sequence[Outline], summaries: Sequence[PathSummary], ahead: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Spans, NDArray[np.int64]]:
    """Return (number int64[K], window int64[K, 2] ns on one clock, int64[2, K]: where the path of each step starts).

    The path starts on the rank that ends last (its index), from which it first reaches a call of that rank.
    """
    all_steps = [rank.steps for rank in ranks]
    common = set.intersection(*(set(rank_steps.number[rank_steps.counted].tolist()) for rank_steps in all_steps))
    number = np.array(sorted(common) if len({rank_steps.marked for rank_steps in all_steps}) == 1 else [], np.int64)
    start, end, first_call = np.empty((3, len(ranks), len(number)), np.int64)
    for index, (rank_steps, summary) in enumerate(zip(all_steps, summaries, strict=True)):
        indices = [int(np.flatnonzero((rank_steps.number == step) & rank_steps.counted)[0]) for step in number.tolist()]
        start[index] = rank_steps.window[indices, 0] - ahead[index]
        end[index] = start[index] + summary.duration[indices]
        first_call[index] = summary.last_call[indices]
    reach = np.maximum.accumulate(end.max(axis=0, initial=np.iinfo(np.int64).min))
    window = np.column_stack([np.maximum(start.max(axis=0), np.r_[start[:, :1].max(axis=0), reach[:-1]]), reach])
    last = end.argmax(axis=0)
    path_start = np.stack([last, first_call[last, np.arange(len(number))]])
    non_empty = window[:, 1] > window[:, 0]
    return number[non_empty], window[non_empty], path_start[:, non_empty]


def _shared_collectives(job: Job, summaries: Sequence[PathSummary]) -> _SharedCollectives:
    """Return the collectives that need all ranks, by the call that starts them on each rank."""
    waits = job.waits
    every, latest = np.arange(len(waits)), latest_rank(waits)
    uncertainty = np.nan_to_num(job.clocks.uncertainty[waits.instances.group])
    calls = waits.instances.call
    call = np.where(calls >= 0, job.issued.nth[calls], -1)
    for index, summary in enumerate(summaries):
        with_call = np.flatnonzero(call[:, index] >= 0)
        call[with_call[summary.work[call[with_call, index]] < 0], index] = -1
    is_certain = waits.wait > uncertainty + uncertainty[every, latest][:, None]
    is_certain &= (call >= 0) & (call[every, latest] >= 0)[:, None]
    is_certain[every, latest] = False
    return _SharedCollectives(call, np.where(is_certain, waits.wait, 0), latest)


def _next_wait(summary: PathSummary, wait: NDArray[np.int64], call: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return int32[C]: the first collective in which this rank waits, on the path back from each call; -1 for none.

    The call's own collective is included; `wait`, `call` int64[B] are those of this rank.
    """
    collective = np.full(len(summary.work), -1)
    collective[call[wait > 0]] = np.flatnonzero(wait > 0)
    return next_marked(collective, summary.next_call)


def _legs(
    summaries: Sequence[PathSummary],
    shared: _SharedCollectives,
    waits: Sequence[NDArray[np.int32]],
    ahead: NDArray[np.int64],
    step: _Leg,
) -> list[_Leg]:
    """Return the path of one step, from its end to its start; it changes ranks at each collective at most once.

    The call of `step` is the first on the path, -1 without one.
    """
    legs, seen = [], set[int]()
    rank, time, call, next_call = step.rank, step.end, -1, step.call
    while True:
        collective = int(waits[rank][next_call]) if next_call >= 0 else -1
        stays = collective < 0 or collective in seen
        latest = 0 if stays else _latest_start(summaries[rank], shared, collective, rank) - int(ahead[rank])
        start = step.start if stays else min(latest, time)
        legs.append(_Leg(rank, max(start, step.start), time, call))
        if start <= step.start:
            return legs
        seen.add(collective)
        rank, time = int(shared.latest[collective]), start
        call = int(shared.call[collective, rank])
        next_call = int(summaries[rank].next_call[call])


def _latest_start(summary: PathSummary, shared: _SharedCollectives, collective: int, rank: int) -> int:
    """Return when the last rank arrived at a collective, ns by the clock of a rank that waits in it."""
    call = shared.call[collective, rank]
    return int(min(summary.start[call] + shared.wait[collective, rank], summary.end[call]))


def _on_rank_clock(summary: PathSummary, legs: Sequence[_Leg], ahead: int) -> Legs:
    """Return the legs of one rank by its clock, in order of time."""
    legs = sorted((leg for leg in legs if leg.end > leg.start), key=lambda leg: leg.start)
    rows = [(leg.start + ahead, leg.end + ahead, int(summary.work[leg.call]) if leg.call >= 0 else -1) for leg in legs]
    return np.array(rows, np.int64).reshape(-1, 3)
