"""Steps of two recordings on one common graph, and how much of every edge's change reaches them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from traceq.causes.common_graph import CommonGraph, RankClock, common_graph
from traceq.causes.holds import launch_queue_length
from traceq.causes.host_line import HostLine, host_lines, without_keys
from traceq.causes.integral import path_shares
from traceq.causes.rank_graph import RankGraph, rank_graph
from traceq.causes.vocabulary import Renaming, in_names_of
from traceq.causes.weights import Weights, edge_weights, idle_device_latency, usual_times
from traceq.facts.comm.rank_collectives import first_work
from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.job import Job, job_of
from traceq.frozen import frozen
from traceq.model import Run, Trace


@frozen(eq=False)
class CommonSteps:
    """Steps of A and B on one common graph.

    `a`, `b`: the host lines of the ranks in the graph, `explained` the index of the rank whose steps these are.
    `share` float64[E] of each edge's change in the sum of all paired steps. `is_swapped`: the sides were exchanged to
    make the result independent of their order; A of all else is the caller's B. `others`: what B calls ops
    and annotations that its lines have under A's names.
    """

    a: tuple[HostLine, ...]
    b: tuple[HostLine, ...]
    explained: int
    graph: CommonGraph
    weights: Weights
    share: NDArray[np.float64]
    is_swapped: bool
    others: Mapping[str, str]

    @property
    def matched_pct(self) -> float:
        """Percent of the anchors of both host lines that are on the other side as well."""
        num_a, num_b, num_pairs = self.graph.num_anchors
        return 200 * num_pairs / (num_a + num_b)


def common_steps(a: Sequence[Trace], b: Sequence[Trace], explained: int = 0) -> CommonSteps:
    """Return the steps of one rank of two recordings: `a` and `b` hold the same ranks in the same order.

    Where their clocks can be compared, all ranks are in the graph, joined by the collectives in which they wait for
    each other; else only the one with the index `explained`.
    """
    is_swapped = are_swapped(a[explained], b[explained])
    if is_swapped:
        a, b = b, a
    named = [in_names_of(ours, theirs) for ours, theirs in zip(a, b, strict=True)]
    b = [each.trace for each in named]
    compared = job_clocks(a, b) if len(a) > 1 else None
    if compared is None:
        a, named, explained = (a[explained],), [named[explained]], 0
    for with_alone in (True, False) if compared else ():
        try:
            return _on_one_graph(a, named, explained, compared, with_alone=with_alone, is_swapped=is_swapped)
        except ValueError:  # ranks have what only one side has in another order, or took others for the same
            continue
    return _on_one_graph((a[explained],), (named[explained],), 0, None, is_swapped=is_swapped)


def _on_one_graph(
    a: Sequence[Trace],
    named: Sequence[Renaming],
    explained: int,
    compared: tuple[tuple[Job, Job], NDArray[np.int64]] | None,
    *,
    is_swapped: bool,
    with_alone: bool = False,
) -> CommonSteps:
    """Return the steps on the graph of these ranks; see `meetings`. Raises ValueError if the graph has a circle."""
    b = [each.trace for each in named]
    queue_length = min(filter(None, map(launch_queue_length, (*a, *b))), default=0)
    lines = [host_lines(of_a, of_b.trace, queue_length, of_b.kernels) for of_a, of_b in zip(a, named, strict=True)]
    ranks = [rank_graph(*of_rank) for of_rank in lines]
    met, clocks = meetings(ranks, *compared, with_alone=with_alone) if compared else (None, [RankClock()])
    graph = common_graph(ranks, clocks, explained, queue_length, met)
    weights = edge_weights(graph, usual_times(min(map(idle_device_latency, (*a, *b)))))
    lines_a, lines_b = (tuple(map(without_keys, of_side)) for of_side in zip(*lines, strict=True))
    return CommonSteps(
        a=lines_a,
        b=lines_b,
        explained=explained,
        graph=graph,
        weights=weights,
        share=path_shares(graph, weights),
        is_swapped=is_swapped,
        others={name: other for each in named for name, other in each.others.items()},
    )


def are_swapped(a: Trace, b: Trace) -> bool:
    """Return whether the sides are to be exchanged, so that what is computed of them does not depend on their order."""
    return _digest(b) < _digest(a)


def _digest(trace: Trace) -> bytes:
    """Return a digest of the times of all events, and behind it one of all texts."""
    digest = sha256()
    for column in (trace.events.ts, trace.events.dur):
        digest.update(np.ascontiguousarray(column).data)
    return digest.digest() + sha256("\0".join(trace.events.strings).encode("utf-8", "surrogatepass")).digest()


_MAX_EARLY_NS = 50_000
"""A collective of which a part ends so long before the last one starts does not meet."""


def job_clocks(a: Sequence[Trace], b: Sequence[Trace]) -> tuple[tuple[Job, Job], NDArray[np.int64]] | None:
    """Return ((the jobs of both sides), int64[2, R] ns to subtract from each rank's times); None if clocks differ.

    The traces of the ranks are in the same order on both sides.
    """
    jobs = job_of(Run("", tuple(a))), job_of(Run("", tuple(b)))
    ahead = []
    for job in jobs:
        offset = job.clocks.ahead if job.is_concurrent and len(job.issued) else np.full(1, np.nan)
        if job.issued.ranks != tuple(rank.rank for rank in job.ranks) or np.isnan(offset).any():
            return None
        ahead.append(np.rint(offset).astype(np.int64) - np.array([rank.base_time_ns for rank in job.ranks]))
    return jobs, np.stack(ahead)


def meetings(
    ranks: Sequence[RankGraph], jobs: tuple[Job, Job], ahead: NDArray[np.int64], *, with_alone: bool = True
) -> tuple[NDArray[np.int64], list[RankClock]]:
    """Return (int64[M, R]: the unit of work with which each rank takes part in a collective, -1 if not; the clocks).

    `with_alone` also of collectives that one side alone has in that place, on all of their ranks.
    """
    works = [
        _works(job, [getattr(rank, side).trace for rank in ranks]) for job, side in zip(jobs, ("a", "b"), strict=True)
    ]
    starts = [
        np.array([getattr(rank, side).time_ns[0] for rank in ranks]) - of_side
        for side, of_side in zip(("a", "b"), ahead, strict=True)
    ]
    starts = [start - start.min() for start in starts]
    units = np.full(works[0].shape, -1)
    same = np.full(works[0].shape, -1)  # the instance of B to which a rank's part belongs
    for index, rank in enumerate(ranks):
        instances = np.flatnonzero(works[0][:, index] >= 0)
        unit = rank.work.unit_of_a[works[0][instances, index]]
        in_b = np.where(unit >= 0, rank.work.b[unit], -1)
        instance_of = np.full(len(device_work(rank.b.trace)) + 1, -1)
        issued = np.flatnonzero(works[1][:, index] >= 0)
        instance_of[works[1][issued, index]] = issued
        units[instances, index] = np.where(in_b >= 0, unit, -1)
        same[instances, index] = instance_of[in_b]
    takes_part = works[0] >= 0
    common = np.where(takes_part, same, -1).max(axis=1)
    units[~takes_part] = -1
    is_same = ((same == common[:, None]) | ~takes_part).all(axis=1) & (common >= 0)
    is_paired = ((units >= 0) == takes_part).all(axis=1) & (takes_part.sum(axis=1) > 1)
    units = units[is_same & is_paired]
    for side, start in zip("ab", starts, strict=True):
        units = units[_meet(ranks, units, side, start)]
    clocks = [RankClock(int(a), int(b)) for a, b in zip(*starts, strict=True)]
    if not with_alone:
        return units, clocks
    alone = [_alone(ranks, *of_side) for of_side in zip(works, "ab", starts, strict=True)]
    return np.concatenate([units, *alone]), clocks


def _alone(
    ranks: Sequence[RankGraph], works: NDArray[np.int64], side: str, start: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return int64[M, R]: the units of collectives, by their `works` int64[I, R], that only one side has there."""
    units = np.full(works.shape, -1)
    for index, rank in enumerate(ranks):
        issued = np.flatnonzero(works[:, index] >= 0)
        unit = getattr(rank.work, f"unit_of_{side}")[works[issued, index]]
        of_other = rank.work.b if side == "a" else rank.work.a
        units[issued, index] = np.where((unit >= 0) & (of_other[unit] < 0), unit, -1)
    takes_part = works >= 0
    units = units.compress(((units >= 0) == takes_part).all(axis=1) & (takes_part.sum(axis=1) > 1), axis=0)
    return units.compress(_meet(ranks, units, side, start), axis=0)


def _works(job: Job, traces: Sequence[Trace]) -> NDArray[np.int64]:
    """Return int64[I, R]: the first device work of each collective that needs all its ranks, -1 without any."""
    calls = job.waits.instances.call
    call = np.where(calls >= 0, job.issued.nth[calls], -1)
    works = np.full(call.shape, -1)
    for index, trace in enumerate(traces):
        works[:, index] = np.r_[first_work(trace), -1][call[:, index]]
    return works


def _meet(
    ranks: Sequence[RankGraph], units: NDArray[np.int64], side: str, start: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which collectives end on no rank before the last one has come: bool[M].

    They need not end together: of an all-to-all, each rank waits for its own part of the data.
    """
    begins, ends = np.full(units.shape, np.nan), np.full(units.shape, np.nan)
    for index, rank in enumerate(ranks):
        part = units[:, index] >= 0
        node = rank.start_node[units[part, index]]
        begins[part, index], ends[part, index] = (
            getattr(rank, f"time_{side}")[n] + start[index] for n in (node, node + 1)
        )
    if not len(units):
        return np.zeros(0, np.bool_)
    return np.asarray(np.nanmax(begins, axis=1) <= np.nanmin(ends, axis=1) + _MAX_EARLY_NS)
