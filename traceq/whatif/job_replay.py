"""Replay of a job: the graphs of its ranks, joined where they meet in collectives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from traceq.causes.job_graph import JobGraph, job_graph
from traceq.causes.savings import lasting
from traceq.causes.stragglers import StragglerRanks, straggler_ranks
from traceq.errors import TraceqError
from traceq.facts.ranks.job import Job, job_of
from traceq.facts.timeline.steps import Steps
from traceq.frozen import frozen
from traceq.grouping import ordinals
from traceq.model import Run, Trace
from traceq.units import format_ranks
from traceq.whatif.limits import EARLY_NS, LEAST_MEETING
from traceq.whatif.rank_part import ContractedRank, RankFacts, RankPart, device_part, host_part
from traceq.whatif.sentences import NOT_REPLAYED

Ints = NDArray[np.int64]
Ranks = Sequence[RankPart | ContractedRank]

NEVER_NS = -(2**60)
"""Weight of an edge that is never waited for."""


class CannotReplay(TraceqError):
    """Recording that no counterfactual can be told from; the message says which part of it."""


@frozen(eq=False, slots=False)  # no slots: what follows from the fields is kept
class JobReplay:
    """R ranks on one graph, and the K steps that all of them counted.

    Edges of rank r are those from `first_edge`[r] on; the last P are those by which the members of M meetings come to
    them. Of each member, int64[P]: `runs`, the edge on which it runs after its meeting; `meeting`; `member_rank`, the
    rank's index; `group`: members of one kind of collective. `begins`, `ends` int64[K, S]: moments, -1 for none, of the
    ranks `column_rank` int64[S]; `host_begins`, `host_ends` likewise of their hosts. `observed`, `loosest` int64[E] ns:
    weights. `communication` int64[X]: the edges of counted steps on which a collective runs. `stragglers`: the late
    ranks. Ranks are in memory as `parts`, or their events are not: `contracted` (then with no parts).
    """

    facts: tuple[RankFacts, ...]
    parts: tuple[RankPart, ...]
    contracted: tuple[ContractedRank, ...]
    graph: JobGraph
    first_edge: Ints
    runs: Ints
    meeting: Ints
    member_rank: Ints
    group: Ints
    begins: Ints
    ends: Ints
    host_begins: Ints
    host_ends: Ints
    column_rank: Ints
    observed: Ints
    loosest: Ints
    communication: Ints
    stragglers: StragglerRanks

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks."""
        return tuple(facts.rank for facts in self.facts)

    @property
    def num_steps(self) -> int:
        """Number of steps that means are taken over."""
        return len(self.begins)

    @property
    def comes(self) -> Ints:
        """int64[P]: the edge by which each member comes to its meeting."""
        return np.arange(len(self.observed) - len(self.runs), len(self.observed))

    def edges_of(self, index: int) -> slice:
        """Return the edges of a rank, by its index."""
        return slice(int(self.first_edge[index]), int(self.first_edge[index + 1]))

    def saved_ns(self, weight: Ints, ignored: tuple[int, ...] = (), *, most: bool, speeds_device: bool = False) -> Ints:
        """Return int64[K] ns: by which steps become shorter with other weights, without the ranks of indices `ignored`.

        They are those of `observed` with a change, which may let the device catch up; with `most` those of `loosest`.
        """
        lasts_ns, host_ns = self._loosest_steps if most else self._observed_steps
        lasts_after, host_after = self._steps_and_hosts(weight, ignored)
        saved = lasts_ns - lasts_after
        return lasting(saved, lasts_ns, host_ns, host_after) if speeds_device and not most else saved

    def _steps_and_hosts(self, weight: Ints, ignored: tuple[int, ...]) -> tuple[Ints, Ints]:
        """Return int64[K] ns each: the steps, and the hosts in them (0 without devices), of ranks that count."""
        time, chosen = self.graph.times(weight), ~np.isin(self.column_rank, ignored)
        begins, ends, host_begins, host_ends = (
            np.where(of >= 0, time[of], NEVER_NS)[:, chosen].max(axis=1)
            for of in (self.begins, self.ends, self.host_begins, self.host_ends)
        )
        return ends - begins, host_ends - host_begins

    @property
    def observed_ns(self) -> Ints:
        """int64[K] ns: the steps as they were."""
        return self._observed_steps[0]

    @property
    def loosest_ns(self) -> Ints:
        """int64[K] ns: the steps without delays that nothing recorded explains."""
        return self._loosest_steps[0]

    @cached_property
    def _observed_steps(self) -> tuple[Ints, Ints]:
        return self._steps_and_hosts(self.observed, ())

    @cached_property
    def _loosest_steps(self) -> tuple[Ints, Ints]:
        return self._steps_and_hosts(self.loosest, ())

    def host_ns(self) -> float:
        """Return ns of the mean step in which a host that waits for nothing makes it as long as it is."""
        on_path, host_ns = self.on_path(), 0
        for part, first in zip(self.parts, self.first_edge.tolist(), strict=False):
            edges = part.host[part.counted[part.host]] + first
            host_ns += int(self.observed[edges[on_path[edges]]].sum())
        return host_ns / self.num_steps

    def on_path(self) -> NDArray[np.bool_]:
        """Return bool[E]: the edges on the paths that decide when the counted steps begin and end."""
        time = np.r_[self.graph.times(self.observed), NEVER_NS]
        rows = np.arange(self.num_steps)
        moments = np.concatenate([of[rows, time[of].argmax(axis=1)] for of in (self.begins, self.ends)])
        return self.graph.edges_on_paths(self.observed, moments)


def job_replay(run: Run) -> JobReplay:
    """Return the replay of all ranks of a run. Raises CannotReplay where they cannot be compared."""
    return replay_of_ranks(job_of(run), run.traces)


def replay_of_ranks(job: Job, traces: Sequence[Trace]) -> JobReplay:
    """Return the replay of a job by the traces of all its ranks, in their order. Raises CannotReplay likewise."""
    counted = common_steps(job)
    is_by_device = job.ranks[0].has_device or len(traces) == 1  # which waits for no collectives of others
    part_of = device_part if is_by_device else host_part
    return joined(job, [part_of(trace, of_rank) for trace, of_rank in zip(traces, counted, strict=True)])


def common_steps(job: Job) -> list[NDArray[np.bool_]]:
    """Return bool[K] of each rank: the steps that all ranks counted. Raises CannotReplay where ranks do not compare."""
    lacking = [rank.rank for rank in job.ranks if rank.lacks_device_rows]
    if lacking:
        of_ranks = f"rank{'s' * (len(lacking) > 1)} {format_ranks(lacking)}"
        raise CannotReplay(NOT_REPLAYED["no_device_rows"].format(path=job.path, ranks=of_ranks))
    if len(job.ranks) == 1:
        return [job.ranks[0].steps.counted]
    if len({rank.has_device for rank in job.ranks}) > 1:
        raise CannotReplay(NOT_REPLAYED["some_device_rows"].format(path=job.path))
    if not job.is_concurrent:
        raise CannotReplay(NOT_REPLAYED["not_concurrent"].format(path=job.path))
    return _common_steps(job.path, [rank.steps for rank in job.ranks])


def joined(job: Job, ranks: Ranks) -> JobReplay:
    """Return the ranks of a job on one graph, in their order. Raises CannotReplay where they cannot be compared."""
    if len(ranks) == 1:
        return _joined(job.path, ranks, np.zeros(1, np.int64), _nobody(), StragglerRanks(()))
    if job.issued.ranks != tuple(rank.rank for rank in job.ranks) or not len(job.waits):
        raise CannotReplay(NOT_REPLAYED["no_collective"].format(path=job.path))
    calls = _calls(job)
    ahead = _clocks(job, calls)
    return _joined(job.path, ranks, ahead, _members(ranks, job, calls, ahead), straggler_ranks(job))


def _common_steps(path: str, all_steps: Sequence[Steps]) -> list[NDArray[np.bool_]]:
    """Return bool[K] of each rank: the steps that all ranks counted, by their numbers. Raises CannotReplay if none."""
    if len({of_rank.marked for of_rank in all_steps}) > 1:
        raise CannotReplay(NOT_REPLAYED["some_marks"].format(path=path))
    names = [list(zip(of.number.tolist(), ordinals([of.number]).tolist(), strict=True)) for of in all_steps]
    counted = [list(compress(of_rank, of.counted)) for of_rank, of in zip(names, all_steps, strict=True)]
    common = set.intersection(*map(set, counted))
    if not common or len({tuple(name for name in of_rank if name in common) for of_rank in counted}) > 1:
        raise CannotReplay(NOT_REPLAYED["no_common_step"].format(path=path))
    chosen = zip(names, all_steps, strict=True)
    return [np.array([name in common for name in of_rank], np.bool_) & of.counted for of_rank, of in chosen]


def _nobody() -> tuple[Ints, Ints, Ints, Ints]:
    none = np.empty(0, np.int64)
    return none, none, none, none


def _calls(job: Job) -> Ints:
    """Return int64[I, R]: the call of each rank in each collective that all ranks of its group ran, -1 without one."""
    instances = job.waits.instances.call[job.waits.complete]
    return np.where(instances >= 0, job.issued.nth[instances], -1)


def _clocks(job: Job, calls: Ints) -> Ints:
    """Return int64[R] ns to subtract from times of each trace, so that they are on one clock."""
    base = np.array([rank.base_time_ns for rank in job.ranks])
    offset = job.clocks.ahead
    if not np.isnan(offset).any():
        ahead: Ints = np.rint(offset).astype(np.int64) - base
        return ahead
    meets = _meets(*(_of_ranks(job, calls, column) for column in ("start", "end")))
    if job.ranks[0].has_device or not len(meets) or meets.mean() < LEAST_MEETING:
        raise CannotReplay(NOT_REPLAYED["clocks"].format(path=job.path))
    return -base


def _of_ranks(job: Job, calls: Ints, column: str) -> NDArray[np.float64]:
    """Return float64[I, R]: an absolute time of each rank's call, NaN without one."""
    instances = job.waits.instances.call[job.waits.complete]
    values: NDArray[np.float64] = np.where(calls >= 0, getattr(job.issued.columns, column)[instances], np.nan)
    return values


def _meets(start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return bool[I]: no rank ends before the last one has started."""
    if not len(start):
        return np.zeros(0, np.bool_)
    return np.asarray(np.nanmax(start, axis=1) <= np.nanmin(end, axis=1) + EARLY_NS)


def _members(parts: Ranks, job: Job, calls: Ints, ahead: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (the edge of each member, its meeting, its rank's index, its kind of collective): int64[P] each."""
    edge, start, end = np.full(calls.shape, -1), np.full(calls.shape, np.nan), np.full(calls.shape, np.nan)
    for index, part in enumerate(parts):
        takes_part = np.flatnonzero(calls[:, index] >= 0)
        edge[takes_part, index] = part.call[calls[takes_part, index]]
        has_edge = np.flatnonzero(edge[:, index] >= 0)
        of_rank = edge[has_edge, index]
        start[has_edge, index] = part.time[part.source[of_rank]] - ahead[index]
        end[has_edge, index] = part.time[part.target[of_rank]] - ahead[index]
    several = np.flatnonzero((edge >= 0).sum(axis=1) > 1)
    several = several[_meets(start[several], end[several])]
    meeting, rank = np.nonzero(edge[several] >= 0)
    instances = job.waits.instances
    kinds = np.column_stack([instances.group, _names(job)])[job.waits.complete]
    kind = np.unique(kinds, axis=0, return_inverse=True)[1].reshape(-1)[several] if len(several) else several
    return edge[several][meeting, rank], meeting, rank, kind[meeting]


def _names(job: Job) -> Ints:
    """Return int64[B]: the kind of each collective."""
    names: Ints = np.r_[job.issued.columns.name, -1][job.waits.instances.call].max(axis=1)
    return names


def _joined(
    path: str,
    parts: Ranks,
    ahead: Ints,
    members: tuple[Ints, Ints, Ints, Ints],
    stragglers: StragglerRanks,
) -> JobReplay:
    """Return the parts on one graph; the earliest rank starts at 0. Raises CannotReplay if meetings are in a circle."""
    edge, meeting, rank, group = members
    first_node = np.cumsum([0, *(len(part.time) for part in parts)])
    first_edge = np.cumsum([0, *(len(part.source) for part in parts)])
    begin = np.array([int(part.time[0]) for part in parts]) - ahead
    begin -= begin.min()
    source, target = parts[0].source, parts[0].target
    if len(parts) > 1:
        source = np.concatenate([part.source + first for part, first in zip(parts, first_node, strict=False)])
        target = np.concatenate([part.target + first for part, first in zip(parts, first_node, strict=False)])
    runs = edge + first_edge[rank]
    try:
        graph = job_graph(int(first_node[-1]), source, target, runs, meeting)
    except ValueError:
        raise CannotReplay(NOT_REPLAYED["circle"].format(path=path)) from None
    shift = begin - np.array([int(part.time[0]) for part in parts])
    come, ends = np.empty(len(edge), np.int64), np.empty(len(edge), np.int64)
    for index, part in enumerate(parts):
        of_rank = rank == index
        come[of_rank] = part.time[part.source[edge[of_rank]]] + shift[index]
        ends[of_rank] = part.time[part.target[edge[of_rank]]] + shift[index]
    latest = np.full(int(meeting.max(initial=-1)) + 1, NEVER_NS)
    np.maximum.at(latest, meeting, come)
    opens = [np.flatnonzero(part.source == 0) for part in parts]

    def of_job(sides: list[Ints]) -> Ints:
        if len(sides) == 1:  # which starts at 0 and meets nobody
            return sides[0]
        weight = np.concatenate([*sides, np.zeros(len(edge), np.int64)])
        for first, of_rank, begin_ns in zip(first_edge, opens, begin, strict=False):
            weight[first + of_rank] += begin_ns
        weight[runs] = ends - latest[meeting]
        return weight

    observed, loosest = (of_job([getattr(part, side) for part in parts]) for side in ("observed", "loosest"))
    (begins, ends_of_steps, host_begins, host_ends), column_rank = _steps(parts, first_node)
    of_ranks = [part.communication + int(first) for part, first in zip(parts, first_edge, strict=False)]
    return JobReplay(
        facts=tuple(part.facts for part in parts),
        parts=tuple(part for part in parts if isinstance(part, RankPart)),
        contracted=tuple(part for part in parts if isinstance(part, ContractedRank)),
        graph=graph,
        first_edge=first_edge,
        runs=runs,
        meeting=meeting,
        member_rank=rank,
        group=group,
        begins=begins,
        ends=ends_of_steps,
        host_begins=host_begins,
        host_ends=host_ends,
        column_rank=column_rank,
        observed=observed,
        loosest=observed if np.array_equal(observed, loosest) else loosest,
        communication=np.concatenate(of_ranks),
        stragglers=stragglers,
    )


def _steps(parts: Ranks, first_node: Ints) -> tuple[list[Ints], Ints]:
    """Return (begins and ends of the steps that all ranks counted, of their hosts; the rank's index of each column)."""
    of_ranks, column_rank = [], []
    for index, (part, first) in enumerate(zip(parts, first_node.tolist(), strict=False)):
        sides = (part.begins, part.ends, part.host_begins, part.host_ends)
        width = max(side.shape[1] for side in sides)
        of_ranks.append([_padded(side[part.counted_steps], first, width) for side in sides])
        column_rank.append(np.full(width, index))
    return [np.concatenate(side, axis=1) for side in zip(*of_ranks, strict=True)], np.concatenate(column_rank)


def _padded(nodes: Ints, first: int, width: int) -> Ints:
    """Return the moments of a job by those of one rank, in as many columns for each side."""
    padded = np.full((len(nodes), width), -1)
    padded[:, : nodes.shape[1]] = np.where(nodes >= 0, nodes + first, -1)
    return padded
