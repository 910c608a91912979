"""Who waits for whom: in a collective that needs all ranks, each waits from its own start to the latest one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.ranks.clock_offsets import BARRIER_LIKE, Clocks
from traceq.facts.ranks.collective_matching import Instances
from traceq.facts.ranks.job_collectives import Issued

__all__ = ["Waits", "latest_rank", "waits"]


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """B collectives that wait for all, among R ranks, each run by two of them or more.

    `instances` of B; `counted` bool[B]: those that all ranks of the group ran, so that their waits can be compared, but
    not the first of these, which begins when the last profiler did;
    `duration` int64[B, R] ns, -1 where a rank has none; `wait` int64[B, R] ns, at most the duration.
    """

    instances: Instances
    counted: NDArray[np.bool_]
    wait: NDArray[np.int64]
    duration: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.instances)

    @property
    def skew(self) -> NDArray[np.int64]:
        """int64[B] ns: the longest wait."""
        longest: NDArray[np.int64] = self.wait.max(axis=1, initial=0)
        return longest

    @property
    def shortest(self) -> NDArray[np.int64]:
        """int64[B] ns: the shortest duration. It is the transfer, as the last rank to arrive does not wait."""
        most = np.iinfo(np.int64).max
        shortest: NDArray[np.int64] = np.where(self.duration >= 0, self.duration, most).min(axis=1, initial=most)
        return shortest


def waits(issued: Issued, instances: Instances, clocks: Clocks) -> Waits:
    """Waits by starts on one clock; where the clocks are not known, by what a rank needs longer than the quickest."""
    calls = instances.call
    ran = (calls >= 0) & (issued.called.start[calls] >= 0) if len(issued) else calls >= 0
    for_all = ~ran | np.isin(issued.called.name[calls] if len(issued) else calls, BARRIER_LIKE)
    chosen = np.flatnonzero((ran.sum(axis=1) > 1) & for_all.all(axis=1))
    instances, calls, ran = instances.some(chosen), calls[chosen], ran[chosen]
    duration = np.where(ran, issued.called.end[calls] - issued.called.start[calls], -1) if len(chosen) else calls
    offset = np.nan_to_num(clocks.offset[instances.group]).astype(np.int64)
    most, least = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    start = issued.called.start[calls] - offset if len(chosen) else calls
    by_start = np.where(ran, start, least).max(axis=1, keepdims=True, initial=least) - start
    by_duration = duration - np.where(ran, duration, most).min(axis=1, keepdims=True, initial=most)
    wait = np.where(clocks.known[instances.group][:, None], by_start, by_duration)
    wait = np.where(ran, np.clip(wait, 0, np.maximum(duration, 0)), -1)
    return Waits(instances, _counted(issued, instances, ran), wait, duration)


def latest_rank(found: Waits) -> NDArray[np.int64]:
    """int64[B]: index of the rank that waits least."""
    most = np.iinfo(np.int64).max
    latest: NDArray[np.int64] = np.where(found.wait >= 0, found.wait, most).argmin(axis=1)
    return latest


def _counted(issued: Issued, instances: Instances, ran: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool[B]: all of the group ran it, and an earlier one."""
    by_all = ran.sum(axis=1) == issued.active.sum(axis=1)[instances.group]
    complete = np.flatnonzero(by_all)
    by_all[complete[np.unique(instances.group[complete], return_index=True)[1]]] = False
    return np.asarray(by_all)
