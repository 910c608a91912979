"""A run without its events: what can be said of all ranks together by what each of them left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

from traceq.facts.comm.rank_collectives import OwnCalls, own_calls
from traceq.facts.ranks.arrival_waits import Waits, waits
from traceq.facts.ranks.clock_offsets import Clocks, clocks
from traceq.facts.ranks.collective_matching import Instances, match
from traceq.facts.ranks.job_collectives import Issued, are_of_one_job, issued_by_ranks
from traceq.facts.ranks.rank_outline import Outline, outline
from traceq.model import Caveat, Flight, Manifest, Pairs, Processes, Run, Timings, Trace

__all__ = ["Job", "LazySequence", "RankQuery", "job_by", "job_of"]

A = TypeVar("A")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class RankQuery(Protocol):
    """A second look at the events of a few ranks, when the merge knows which."""

    def __call__(self, question: Callable[[Trace, A], T], asked: Sequence[tuple[int, A]]) -> list[T]:
        """The answers for (rank, what to ask of it), in this order; `question` is a function of a module."""
        ...


class LazySequence(Sequence[T_co]):
    """What a function says of each of some things, asked each time anew: all of it need not be in memory at once."""

    def __init__(self, function: Callable[[int], T_co], num: int) -> None:
        self._function, self._num = function, num

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, at: int) -> T_co:  # type: ignore[override]
        if not 0 <= at < self._num:
            raise IndexError(at)
        return self._function(at)


@dataclass(frozen=True, eq=False)
class Job:
    """R ranks of one run, ascending, without their events; what is compared across them is worked out once.

    `calls` of R ranks; `look` reads a few of them again. The rest as in Run.
    """

    path: str
    ranks: tuple[Outline, ...]
    calls: Sequence[OwnCalls]
    look: RankQuery
    manifest: Manifest | None = None
    arm: str = ""
    pairs: tuple[Pairs, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    flights: tuple[Flight, ...] = ()
    timings: Timings | None = None
    processes: tuple[Processes, ...] = ()

    @cached_property
    def is_one(self) -> bool:
        """The ranks ran at the same time."""
        return are_of_one_job(self.ranks)

    @cached_property
    def issued(self) -> Issued:
        """The collectives of all ranks; none where they were recorded one after the other."""
        return issued_by_ranks(self.ranks, self.calls) if self.is_one else issued_by_ranks((), ())

    @cached_property
    def instances(self) -> Instances:
        """Which of them are one."""
        return match(self.issued)

    @cached_property
    def clocks(self) -> Clocks:
        """How far the ranks' clocks are apart."""
        return clocks(self.issued, self.instances)

    @cached_property
    def waits(self) -> Waits:
        """Who waits for whom."""
        return waits(self.issued, self.instances, self.clocks)


def job_of(run: Run) -> Job:
    """The run as a job, whose ranks are in memory."""
    of_rank = {trace.rank: trace for trace in run.traces}

    def look(question: Callable[[Trace, A], T], asked: Sequence[tuple[int, A]]) -> list[T]:
        return [question(of_rank[rank], what) for rank, what in asked]

    calls = LazySequence(lambda at: own_calls(run.traces[at]), len(run.traces))
    return job_by(run, tuple(outline(trace) for trace in run.traces), calls, look)


def job_by(run: Run, ranks: tuple[Outline, ...], calls: Sequence[OwnCalls], look: RankQuery) -> Job:
    """The run as a job, by what is left of its ranks."""
    return Job(
        run.path,
        ranks,
        calls,
        look,
        run.manifest,
        run.arm,
        run.pairs,
        run.caveats,
        run.flights,
        run.timings,
        run.processes,
    )
