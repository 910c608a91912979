"""Waits by their cause: in each collective the last rank to arrive makes the others wait.

Sums over ranks hide late ranks that take turns: each waits for the other, and all of them wait as long.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traceq.facts.ranks.arrival_waits import latest_rank
from traceq.facts.ranks.job import Job
from traceq.frozen import frozen
from traceq.intervals import Spans, measure_within, sorted_unique

_MOST = 0.75
"""Part of all waits that stragglers cause."""


@frozen(eq=False)
class CausedWaits:
    """W waits, one for each rank in each collective that counts, over R ranks and K steps that all of them count.

    `counted` bool[B]: the instances that count: those of these steps, without the first of each group. `cause`,
    `instance` int64[W] into the job's ranks and instances; `step` int64[W] into K. `ns`, `once_ns`,
    `exposed_ns` int64[W]: the wait, its part in which the rank does not wait in a collective that it issued before, and
    the part of that in which it computes nothing. `peers` bool[R, R]: share a group.
    """

    counted: NDArray[np.bool_]
    cause: NDArray[np.int64]
    instance: NDArray[np.int64]
    step: NDArray[np.int64]
    ns: NDArray[np.int64]
    once_ns: NDArray[np.int64]
    exposed_ns: NDArray[np.int64]
    peers: NDArray[np.bool_]
    num_steps: int

    def caused(self, values: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[R]: the values by causing rank, mean over the ranks that may wait for it."""
        return self._by(np.zeros(len(values), np.int64), 1, values).ravel()

    def per_step(self, values: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[K, R]: likewise for each step."""
        return self._by(self.step, self.num_steps, values)

    def per_collective(self, values: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[N, R]: likewise for each of the collectives that count."""
        instances, part = np.unique(self.instance, return_inverse=True)
        return self._by(part, len(instances), values)

    def _by(self, part: NDArray[np.int64], num: int, values: NDArray[np.int64]) -> NDArray[np.float64]:
        sums = np.zeros((num, len(self.peers)))
        np.add.at(sums, (part, self.cause), values)
        return np.asarray(sums / np.maximum(self.peers.sum(axis=1), 1))


def caused_waits(job: Job, exposed: Mapping[int, Spans]) -> CausedWaits:
    """Return the waits of a job's counted collectives; `exposed`, by rank, is on the clock of its calls."""
    issued, waits = job.issued, job.waits
    numbers, num_steps, counted = _in_counted_steps(job)
    instance, waiter = np.nonzero(counted[:, None] & (waits.wait >= 0))
    call = waits.instances.call[instance, waiter]
    start, ns = issued.columns.start[call], waits.wait[instance, waiter]
    once_ns, exposed_ns = np.zeros_like(ns), np.zeros_like(ns)
    for index, rank in enumerate(issued.ranks):
        selected = np.flatnonzero(waiter == index)
        selected = selected[np.argsort(start[selected], kind="stable")]
        ends = start[selected] + ns[selected]
        since = np.maximum(start[selected], np.r_[0, np.maximum.accumulate(ends)[:-1]]) if len(selected) else ends
        since = np.minimum(since, ends)
        once_ns[selected] = ends - since
        exposed_ns[selected] = measure_within(exposed[rank], since, ends)
    cause = latest_rank(waits)[instance] if len(instance) else instance
    step, peers = numbers[instance], _peers(job)
    return CausedWaits(counted, cause, instance, step, ns, once_ns, exposed_ns, peers, num_steps)


def _in_counted_steps(job: Job) -> tuple[NDArray[np.int64], int, NDArray[np.bool_]]:
    """Return (int64[B]: the step of each instance, the number of steps, bool[B]: which instances count).

    Steps are those that all ranks count, as far as they have an instance; where none of these has, any that have one.
    """
    issued, waits = job.issued, job.waits
    call = waits.instances.call
    number = np.where(call >= 0, issued.columns.step[call], -1).max(axis=1, initial=-1)
    inside = waits.counted & np.isin(number, _counted_numbers(job))
    inside = inside if inside.any() else waits.counted
    steps = sorted_unique(number[inside])
    return np.searchsorted(steps, number), len(steps), inside


def _counted_numbers(job: Job) -> NDArray[np.int64]:
    """int64[K]: numbers of the steps that count on all ranks, ascending."""
    numbers = [set(rank.steps.number[rank.steps.counted].tolist()) for rank in job.ranks if rank.steps.marked]
    return np.array(sorted(set.intersection(*numbers)) if numbers else [], np.int64)


def _peers(job: Job) -> NDArray[np.bool_]:
    active = job.issued.active
    peers = (active.T.astype(np.int64) @ active) > 0
    np.fill_diagonal(peers, val=False)
    return np.asarray(peers)


def stragglers(waits: CausedWaits, step_ns: float, least_share: float) -> NDArray[np.int64]:
    """int64[N]: ranks that the others wait for, the largest cause first.

    A rank that causes at least three times the mean of what those that share a group with it cause (75 % of all waits
    of two ranks, 60 % of three, 30 % of eight), and makes the others wait for at least `least_share` of the step. None
    if these ranks together cause less than three quarters of all waits.
    """
    if not waits.num_steps:
        return np.empty(0, np.int64)
    caused = waits.per_step(waits.ns).mean(axis=0)
    sums = caused * waits.peers.sum(axis=1)
    among = sums + waits.peers @ sums
    usual = 3 / (waits.peers.sum(axis=1) + 3)
    is_late = (sums >= usual * among) & (sums > 0) & (caused >= least_share * step_ns)
    if sums[is_late].sum() < _MOST * sums.sum():
        return np.empty(0, np.int64)
    return np.flatnonzero(is_late)[np.argsort(-caused[is_late], kind="stable")]
