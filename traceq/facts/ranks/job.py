"""Job: a run without its events, with the facts that compare all ranks; the ranks of a run, in memory or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import isfinite
from typing import Protocol, TypeVar

from traceq.facts.comm.rank_collectives import RankCalls, rank_calls
from traceq.facts.memo import once_per_trace
from traceq.facts.ranks.arrival_waits import ArrivalWaits, Clocks, arrival_waits, clocks
from traceq.facts.ranks.collective_matching import Instances, match_collectives
from traceq.facts.ranks.job_collectives import JobCollectives, issued_by_ranks
from traceq.facts.ranks.message_matching import MessageTimes, match_messages
from traceq.facts.ranks.rank_outline import Outline, are_concurrent, outline
from traceq.facts.ranks.unrecorded_share import unrecorded_share
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.frozen import frozen
from traceq.model import Caveat, Flight, Manifest, Pairs, Processes, Run, Timings, Trace

_PART_LOST = 0.01
"""Part of the launches without rows that is told: those of the last work are not back when a profiler stops."""

A = TypeVar("A")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class RankQuery(Protocol):
    """Query of the events of a few ranks, once the merge knows which."""

    def __call__(self, question: Callable[[Trace, A], T], arguments: Sequence[tuple[int, A]], /) -> list[T]:
        """Return `question(trace, argument)` for each (rank, argument); `question` is a module-level function."""
        ...


class LazySequence(Sequence[T_co]):
    """Sequence whose items a function computes on each access, so that not all are in memory at once."""

    def __init__(self, function: Callable[[int], T_co], num: int) -> None:
        self._function, self._num = function, num

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, index: int) -> T_co:  # type: ignore[override]
        if not 0 <= index < self._num:
            raise IndexError(index)
        return self._function(index)


@frozen(eq=False, slots=False)
class Job:
    """R ranks of one run, ascending, without their events; facts that compare ranks are computed once.

    `calls` of R ranks; `query` reads the events of a few ranks again. The other fields are those of Run.
    """

    path: str
    ranks: tuple[Outline, ...]
    calls: Sequence[RankCalls]
    query: RankQuery
    manifest: Manifest | None = None
    arm: str = ""
    pairs: tuple[Pairs, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    flights: tuple[Flight, ...] = ()
    timings: Timings | None = None
    processes: tuple[Processes, ...] = ()

    @property
    def is_foreign(self) -> bool:
        """Whether no event of any rank is of PyTorch's profiler."""
        return bool(self.ranks) and all(rank.is_foreign for rank in self.ranks)

    @property
    def is_empty(self) -> bool:
        """Whether no trace has an op, an annotation, Python or work of a device."""
        return bool(self.ranks) and all(rank.is_empty for rank in self.ranks)

    @cached_property
    def is_concurrent(self) -> bool:
        """Whether the ranks ran at the same time."""
        return are_concurrent(self.ranks)

    @cached_property
    def issued(self) -> JobCollectives:
        """Collectives of all ranks; none if the ranks were recorded one after the other."""
        return issued_by_ranks(self.ranks, self.calls) if self.is_concurrent else issued_by_ranks((), ())

    @cached_property
    def instances(self) -> Instances:
        """Matched collectives."""
        return match_collectives(self.issued)

    @cached_property
    def clocks(self) -> Clocks:
        """Clock offsets between ranks."""
        return clocks(self.issued, self.instances, self.clock_hosts)

    @property
    def lost_launches(self) -> tuple[int, int]:
        """How many of how many launches of kernels have no row of the device; 0 of 0 where next to none lacks one."""
        lost, launches = (sum(rank.lost_launches[column] for rank in self.ranks) for column in (0, 1))
        return (lost, launches) if lost > _PART_LOST * launches else (0, 0)

    @property
    def lacks_ranks(self) -> bool:
        """Whether ranks of the job were not read."""
        return any(
            len(self.ranks) < rank.world_size or (len(self.ranks) == 1 and rank.has_untold_ranks) for rank in self.ranks
        )

    @cached_property
    def clock_hosts(self) -> tuple[str, ...]:
        """Host of each rank that issued collectives; "" where it is unknown, or a device tells the time of them."""
        names = self.manifest.hosts if self.manifest is not None else ()
        by_device = {rank.rank for rank in self.ranks if rank.has_device}
        return tuple(names[rank] if rank < len(names) and rank not in by_device else "" for rank in self.issued.ranks)

    @cached_property
    def waits(self) -> ArrivalWaits:
        """Arrival waits in collectives that need all ranks."""
        are_all_read = len(self.ranks) >= max((rank.world_size for rank in self.ranks), default=0)
        return arrival_waits(self.issued, self.instances, self.clocks, are_all_read=are_all_read)

    @cached_property
    def messages(self) -> MessageTimes:
        """Messages between two ranks, on one clock; none if the ranks were recorded one after the other."""
        ranks = self.ranks if self.is_concurrent else ()
        messages = [calls.messages for calls in self.calls] if ranks else []
        ahead = zip(self.issued.ranks, self.clocks.ahead.tolist(), strict=True)
        return match_messages(
            [rank.rank for rank in ranks],
            messages,
            [rank.base_time_ns for rank in ranks],
            {rank: ns for rank, ns in ahead if isfinite(ns)},
        )


def job_of(run: Run) -> Job:
    """Return the run, whose traces are in memory, as a job."""
    query = query_here({trace.rank: trace for trace in run.traces}.__getitem__)
    calls = LazySequence(lambda index: rank_calls(run.traces[index]), len(run.traces))
    return job_from_outlines(run, tuple(outline(trace) for trace in run.traces), calls, query)


def query_here(trace: Callable[[int], Trace]) -> RankQuery:
    """Return a query that is answered in this process, by the traces that `trace` returns."""

    def query(question: Callable[[Trace, A], T], arguments: Sequence[tuple[int, A]], /) -> list[T]:
        return [question(trace(rank), argument) for rank, argument in arguments]

    return query


def job_from_outlines(run: Run, ranks: tuple[Outline, ...], calls: Sequence[RankCalls], query: RankQuery) -> Job:
    """Return the run as a job, from the outlines and calls of its ranks."""
    return Job(
        run.path,
        ranks,
        calls,
        query,
        run.manifest,
        run.arm,
        run.pairs,
        run.caveats,
        run.flights,
        run.timings,
        run.processes,
    )


@frozen
class StepTotals:
    """Number of a rank's counted steps, their ns, and those of exposed communication.

    `unrecorded_share` is the part of the trace in which the device does work that the trace does not show.
    """

    num: int
    ns: int
    exposed_ns: int
    unrecorded_share: float


@once_per_trace
def step_totals(trace: Trace) -> StepTotals:
    """Return the sums of one rank."""
    windows, pieces = steps(trace).window[steps(trace).counted], activity(trace)
    is_exposed = in_counted_steps(trace) & pieces.among(TimeCategory.EXPOSED_COMM)
    return StepTotals(
        num=len(windows),
        ns=int((windows[:, 1] - windows[:, 0]).sum()),
        exposed_ns=int(pieces.ns[is_exposed].sum()),
        unrecorded_share=unrecorded_share(trace),
    )


@frozen(eq=False)
class RunRanks:
    """R ranks of a run as a job, and the sums over their steps.

    The traces of `run` may lack their events; `trace` returns that of a rank with its events, reading it if need be.
    """

    run: Run
    job: Job
    totals: Sequence[StepTotals]
    trace: Callable[[int], Trace]


def ranks_in_memory(run: Run) -> RunRanks:
    """Return the ranks of a run whose traces have their events."""
    totals = LazySequence(lambda index: step_totals(run.traces[index]), len(run.traces))
    return RunRanks(run, job_of(run), totals, {trace.rank: trace for trace in run.traces}.__getitem__)
