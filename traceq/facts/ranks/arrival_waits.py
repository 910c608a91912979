"""Arrival waits: in a collective that needs all ranks, each rank waits from its start to the latest start."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.rank_collectives import BARRIER_LIKE
from traceq.facts.ranks.clock_offsets import Clocks
from traceq.facts.ranks.collective_matching import Instances
from traceq.facts.ranks.job_collectives import JobCollectives
from traceq.frozen import frozen
from traceq.intervals import sorted_unique


@frozen(eq=False)
class ArrivalWaits:
    """Waits in B collectives that need all ranks, among R ranks, each run by at least two of them.

    `instances` of B; `complete` bool[B]: run by all ranks of the group, so that waits are comparable; `possible`
    bool[B]: those whose waits the group has time for; `counted` bool[B]: those but the first of each group, in which a
    rank is late if its profiler starts late; `duration` int64[B, R] ns, -1 where a rank has none; `wait` int64[B, R]
    ns, at most the duration.
    """

    instances: Instances
    complete: NDArray[np.bool_]
    possible: NDArray[np.bool_]
    counted: NDArray[np.bool_]
    wait: NDArray[np.int64]
    duration: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.instances)

    @property
    def skew(self) -> NDArray[np.int64]:
        """int64[B] ns: the longest wait."""
        skew: NDArray[np.int64] = self.wait.max(axis=1, initial=0)
        return skew

    @property
    def shortest(self) -> NDArray[np.int64]:
        """int64[B] ns: the shortest duration, which is the transfer time, as the last rank to arrive does not wait."""
        most = np.iinfo(np.int64).max
        shortest: NDArray[np.int64] = np.where(self.duration >= 0, self.duration, most).min(axis=1, initial=most)
        return shortest


def arrival_waits(
    issued: JobCollectives, instances: Instances, clocks: Clocks, *, are_all_read: bool = True
) -> ArrivalWaits:
    """Return the waits by starts on one clock, or by durations minus the shortest where clock offsets are unknown.

    Where not all ranks of the job are read, none is known of groups that have others, or of which that is not known.
    """
    calls = instances.call
    ran = (calls >= 0) & (issued.columns.start[calls] >= 0) if len(issued) else calls >= 0
    for_all = ~ran | np.isin(issued.columns.name[calls] if len(issued) else calls, BARRIER_LIKE)
    chosen = np.flatnonzero((ran.sum(axis=1) > 1) & for_all.all(axis=1))
    instances, calls, ran = instances.select(chosen), calls[chosen], ran[chosen]
    duration = np.where(ran, issued.columns.end[calls] - issued.columns.start[calls], -1) if len(chosen) else calls
    offset = np.nan_to_num(clocks.offset[instances.group]).astype(np.int64)
    most, least = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    start = issued.columns.start[calls] - offset if len(chosen) else calls
    by_start = np.where(ran, start, least).max(axis=1, keepdims=True, initial=least) - start
    by_duration = duration - np.where(ran, duration, most).min(axis=1, keepdims=True, initial=most)
    wait = np.where(clocks.is_known[instances.group][:, None], by_start, by_duration)
    wait = np.where(ran, np.clip(wait, 0, np.maximum(duration, 0)), -1)
    complete = np.asarray(ran.sum(axis=1) == _num_needed(issued, instances, are_all_read=are_all_read))
    possible = complete.copy()
    for group in sorted_unique(instances.group[complete & ~clocks.is_known[instances.group]]).tolist():
        rows = complete & (instances.group == group)
        ranks = ran[rows].any(axis=0)
        possible[rows] = _is_possible(wait[rows][:, ranks], start[rows][:, ranks], duration[rows][:, ranks])
    counted = possible & ~_is_first(instances, complete)
    return ArrivalWaits(instances, complete, possible, counted, wait, duration)


def _num_needed(issued: JobCollectives, instances: Instances, *, are_all_read: bool) -> NDArray[np.int64]:
    """Return how many ranks the group of each instance has: int64[B]."""
    if not len(issued):
        return np.zeros(len(instances), np.int64)
    sizes = np.where(instances.call >= 0, issued.columns.group_size[instances.call], -1).max(axis=1, initial=-1)
    num_active: NDArray[np.int64] = issued.active.sum(axis=1)[instances.group]
    return num_active if are_all_read else np.where(sizes > 0, sizes, num_active + 1)


def _is_possible(wait: NDArray[np.int64], start: NDArray[np.int64], duration: NDArray[np.int64]) -> bool:
    """Return whether some ranks have the time for waits int64[B, R]: one of them, the last to arrive, never waits.

    A device that is suspended within collectives makes them longer, which no wait is.
    """
    longest_ns = int(((start + duration).max(axis=0) - start.min(axis=0)).max())
    return bool(wait.sum() <= (wait.shape[1] - 1) * longest_ns)


def latest_rank(waits: ArrivalWaits) -> NDArray[np.int64]:
    """Return int64[B]: index of the rank that waits least."""
    most = np.iinfo(np.int64).max
    latest: NDArray[np.int64] = np.where(waits.wait >= 0, waits.wait, most).argmin(axis=1)
    return latest


def _is_first(instances: Instances, complete: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool[B]: the first complete collective of its group."""
    rows, is_first = np.flatnonzero(complete), np.zeros(len(complete), np.bool_)
    is_first[rows[np.unique(instances.group[rows], return_index=True)[1]]] = True
    return is_first
