"""Arrival waits: in a collective that needs all ranks, each rank waits from its start to the latest start.

Clocks of ranks are compared by such collectives, too: they end everywhere at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.rank_collectives import BARRIER_LIKE
from traceq.facts.ranks.collective_matching import Instances
from traceq.facts.ranks.job_collectives import JobCollectives
from traceq.frozen import frozen
from traceq.intervals import sorted_unique

_MAX_RESIDUAL_SHARE = 0.25
_MIN_INSTANCES = 3
_OTHER_CLOCK_NS = 100e6
"""Offset from which hosts of one name, such as `localhost`, are two: no process of a host is ahead by as much."""


@frozen(eq=False)
class Clocks:
    """Clock `offset` and `uncertainty` float64[G, R] ns by group and rank; NaN where there is none or it is refused."""

    offset: NDArray[np.float64]
    uncertainty: NDArray[np.float64]

    @property
    def is_known(self) -> NDArray[np.bool_]:
        """bool[G]: the clocks of the group can be compared."""
        return np.asarray(np.isfinite(self.offset).any(axis=1))

    @property
    def ahead(self) -> NDArray[np.float64]:
        """float64[R] ns that each clock is ahead of the first rank's; NaN for a rank that no chain of groups reaches.

        Offsets are chained through groups that share ranks, the largest group first.
        """
        ahead = np.full(self.offset.shape[1], np.nan)
        ahead[:1] = 0
        has_offset = np.isfinite(self.offset)
        for _ in range(len(ahead)):
            joins = (has_offset & np.isfinite(ahead)).any(axis=1) & (has_offset & np.isnan(ahead)).any(axis=1)
            if not joins.any():
                break
            group = int(np.argmax(np.where(joins, has_offset.sum(axis=1), -1)))
            via = int(np.flatnonzero(has_offset[group] & np.isfinite(ahead))[0])
            added = has_offset[group] & np.isnan(ahead)
            ahead[added] = ahead[via] + self.offset[group, added] - self.offset[group, via]
        return ahead


def clocks(issued: JobCollectives, instances: Instances, hosts: Sequence[str] = ()) -> Clocks:
    """Return the offsets of each group's clocks from their median, by the collectives that all ranks of the group ran.

    `hosts` of the ranks whose times are by the host's clock, "" for others: a group on one host shares its clock,
    unless its collectives show that hosts of one name have two.

    The offset of a rank is the median of (its end - the median end over ranks). A second pass takes the median of ends
    corrected by the first, so that outlying clocks do not decide which end is the median. Refused where the 95th
    percentile of the residuals is more than a quarter of that of the skew of the starts: then the ends are too far
    apart to tell late ranks from early ones.
    """
    shape = issued.member.shape
    offset, uncertainty = np.full(shape, np.nan), np.full(shape, np.nan)
    for group in range(shape[0]):
        ranks = np.flatnonzero(issued.active[group])
        if len(ranks) < 2:
            continue
        estimate = _estimate(issued, _barriers(issued, instances, group, ranks))
        names = {hosts[rank] for rank in ranks.tolist()} if hosts else {""}
        is_one_host = len(names) == 1 and "" not in names
        if is_one_host and (estimate is None or np.abs(estimate[0]).max() < _OTHER_CLOCK_NS):
            estimate = np.zeros(len(ranks)), np.zeros(len(ranks))
        if estimate is not None:
            offset[group, ranks], uncertainty[group, ranks] = estimate
    return Clocks(offset, uncertainty)


def _estimate(
    issued: JobCollectives, calls: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return (offsets, half the 95 % intervals) by the ends of calls int64[B, R]; None where they do not tell."""
    if len(calls) < _MIN_INSTANCES:
        return None
    origin = issued.columns.end[calls[0, 0]]
    ends, starts = (
        (issued.columns.end[calls] - origin).astype(np.float64),
        (issued.columns.start[calls] - origin).astype(np.float64),
    )
    medians = _offsets(ends, np.zeros(calls.shape[1]))
    medians = _offsets(ends, medians)
    deviations = _from_middle(ends - medians) + medians
    skew = np.ptp(starts - medians, axis=1)
    if np.percentile(np.abs(deviations - medians), 95) > _MAX_RESIDUAL_SHARE * np.percentile(skew, 95):
        return None
    return medians, _half_width(deviations)


def _barriers(issued: JobCollectives, instances: Instances, group: int, ranks: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return int64[B, ranks]: calls of the group's barrier-like collectives that ran on all its ranks."""
    calls = instances.call[instances.group == group][:, ranks]
    calls = calls[(calls >= 0).all(axis=1)]
    ran = (issued.columns.start[calls] >= 0).all(axis=1) & np.isin(issued.columns.name[calls], BARRIER_LIKE).all(axis=1)
    chosen: NDArray[np.int64] = calls[ran]
    return chosen


def _from_middle(ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[B, R] ns: each end minus the median end over ranks."""
    middle: NDArray[np.float64] = ends - np.median(ends, axis=1, keepdims=True)
    return middle


def _offsets(ends: NDArray[np.float64], guess: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[R] ns: median offset over collectives, from the median of ends corrected by `guess`."""
    medians: NDArray[np.float64] = np.median(_from_middle(ends - guess) + guess, axis=0)
    return medians - np.median(medians)


def _half_width(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return half the 95 % interval of the median by order statistics; half the range if there are too few values."""
    ordered, num = np.sort(values, axis=0), len(values)
    low = max(int(np.floor((num - 1.96 * np.sqrt(num)) / 2)), 0)
    width: NDArray[np.float64] = (ordered[num - 1 - low] - ordered[low]) / 2
    return width


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
