"""Answers of `traceq whatif` about any path: ranks whose events do not fit into memory are read by an engine, in turn.

Each rank makes the changes to itself, and leaves what is between its collectives as few edges; these are joined here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.engines.rank_reader import Engine, FileTasks, Lost, plain_bytes
from traceq.engines.rank_summary import pack, unpack
from traceq.errors import TraceqError, UnreadableInput, UsageFault
from traceq.facts.comm.rank_collectives import RankCalls, rank_calls
from traceq.facts.events.device_work import device_work
from traceq.facts.ranks.job import Job, LazySequence, job_from_outlines, query_here
from traceq.facts.ranks.rank_outline import Outline, head, outline
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.locations import Place
from traceq.model import Run, Trace
from traceq.runs.read import read, read_one, read_or_fault, with_traces
from traceq.whatif.intervention import Intervention, RankIntervention
from traceq.whatif.interventions import BalancedLoader, ScaledLoader, loader_waits_by_step
from traceq.whatif.job_replay import JobReplay, common_steps, job_replay, joined
from traceq.whatif.predict import Prediction, RankWaits, best_changes, best_of, candidates, predict, rank_waits
from traceq.whatif.rank_cases import contracted_part
from traceq.whatif.rank_part import ContractedRank, RankPart, device_part, host_part

Case = tuple[RankIntervention, ...]


@frozen
class Answers:
    """Predictions for a path, and its run, whose traces are without events where an engine read them."""

    predictions: tuple[Prediction, ...]
    run: Run


@frozen
class _PlayedRank:
    """One trace without its events, each piece as bytes: `head`, `outline` and `calls` as in a RankSummary.

    `contracted`: its graph in the cases that were asked for; `waits`: what its host waits for; `loader_waits`: (step,
    start ns, end ns) of the wait for the data loader in each counted step that has one.
    """

    head: bytes
    outline: bytes
    calls: bytes
    contracted: bytes
    waits: bytes
    loader_waits: tuple[tuple[int, int, int], ...]


def answers(
    path: str | Place,
    interventions: Sequence[Intervention],
    *,
    start: Callable[[], Engine],
    small: int,
    ranks: set[int] | None = None,
    on_progress: Callable[[int, int], None] = lambda ended, planned: None,
) -> Answers:
    """Return what the interventions do together; without any, each of the three that gain most.

    A folder whose traces have at most `small` bytes in total is read in this process; the answers are the same. Raises
    UnreadableInput, UsageFault and CannotReplay.
    """
    is_known = bool(interventions) and not any(isinstance(each, BalancedLoader) for each in interventions)
    reader = _Reader(_cases(interventions) if is_known else None, start, small, on_progress)
    run, name = with_traces(read(path, ranks=ranks, reader=reader.read)), str(path)
    if len(run.traces) == 1:
        run = reader.in_memory(run)
    if not reader.is_elsewhere(run):
        replay = job_replay(run)
        return Answers((predict(replay, interventions, name),) if interventions else best_changes(replay, name), run)
    job = reader.job(run)
    replay = reader.replay(run, job)
    if is_known:
        return Answers((predict(replay, interventions, name),), run)
    changes = interventions or candidates(replay, reader.waits(run))
    of_ranks = reader.balanced(run, changes, is_optional=not interventions)
    if interventions:
        replay = reader.replay(run, job, [_cases(of_rank) for of_rank in of_ranks])
        return Answers((predict(replay, of_ranks[0], name),), run)
    replay = reader.replay(run, job, [_each(of_rank) for of_rank in of_ranks])
    return Answers(best_of(replay, of_ranks[0], name), run)


def _cases(interventions: Sequence[Intervention]) -> tuple[Case, ...]:
    """Return what ranks change by themselves: each alone, and all together."""
    each = _each(interventions)
    return (*each, tuple(one for (one,) in each)) if len(each) > 1 else each


def _each(interventions: Sequence[Intervention]) -> tuple[Case, ...]:
    return tuple((each,) for each in interventions if isinstance(each, RankIntervention))


class _Reader:
    """Reader of the ranks of a folder, whose changes in some `cases` are made where they are read."""

    def __init__(
        self,
        cases: Sequence[Case] | None,
        start: Callable[[], Engine],
        small: int,
        on_progress: Callable[[int, int], None],
    ) -> None:
        self._cases, self._tasks, self._small, self._on_progress = cases, FileTasks(start), small, on_progress
        self._played: dict[str, tuple[Place, _PlayedRank]] = {}

    def read(self, files: Sequence[Place]) -> Iterable[Trace | UnreadableInput]:
        """Return per file the trace, without its events if the traces are large, or why it cannot be read."""
        if sum(map(plain_bytes, files)) <= self._small:
            return list(map(read_or_fault, files))
        results: list[Trace | UnreadableInput] = [
            UnreadableInput(str(file), "the process that read it died, possibly out of memory") for file in files
        ]
        self._on_progress(0, len(files))
        played = self._tasks.run(_play, [(file, self._cases) for file in files], files)
        for done, (index, result) in enumerate(played, 1):
            self._on_progress(done, len(files))
            if isinstance(result, _PlayedRank):
                self._played[str(files[index])] = files[index], result
                results[index] = replace(unpack(result.head, Trace), path=str(files[index]))
            elif isinstance(result, UnreadableInput):
                results[index] = result
        return results

    def in_memory(self, run: Run) -> Run:
        """Return the run of a single rank with its events."""
        if not self.is_elsewhere(run):
            return run
        (trace,) = run.traces
        return replace(run, traces=(read_one(self._played[trace.path][0], strict=False),))

    def is_elsewhere(self, run: Run) -> bool:
        """Return whether the traces of a run have no events here."""
        return not run.traces[0].events.strings and run.traces[0].path in self._played

    def job(self, run: Run) -> Job:
        """Return the run as a job whose ranks are not in memory."""
        ranks = self._of(run)
        files = {trace.rank: self._played[trace.path][0] for trace in run.traces}
        return job_from_outlines(
            run,
            tuple(unpack(rank.outline, Outline) for rank in ranks),
            LazySequence(lambda index: unpack(ranks[index].calls, RankCalls), len(ranks)),
            query_here(lambda rank: read_one(files[rank], strict=False)),
        )

    def waits(self, run: Run) -> list[RankWaits]:
        """Return what the host of each rank waits for."""
        return [unpack(rank.waits, RankWaits) for rank in self._of(run)]

    def balanced(self, run: Run, changes: Sequence[Intervention], *, is_optional: bool) -> list[list[Intervention]]:
        """Return what is asked of each rank: balanced loaders are another change of each. Raises UsageFault.

        One that is not possible is left out where it `is_optional`.
        """
        waits = [{step: (start, end) for step, start, end in rank.loader_waits} for rank in self._of(run)]
        loader = next((each for each in changes if isinstance(each, BalancedLoader)), None)
        scaled: list[ScaledLoader] = []
        if loader is not None:
            try:
                scaled = loader.of_ranks(run.ranks, waits)
            except UsageFault:
                if not is_optional:
                    raise
        return [
            [
                scaled[index] if isinstance(each, BalancedLoader) else each
                for each in changes
                if scaled or not isinstance(each, BalancedLoader)
            ]
            for index in range(len(run.traces))
        ]

    def replay(self, run: Run, job: Job, cases: Sequence[Sequence[Case]] | None = None) -> JobReplay:
        """Return the replay of all ranks in the cases of each, else in those in which they were read.

        A rank is read again for other cases, or if not all ranks counted the same steps. Raises CannotReplay.
        """
        ranks, counted = self._of(run), common_steps(job)
        again = [
            index
            for index, (rank, steps_) in enumerate(zip(job.ranks, counted, strict=True))
            if cases is not None or not np.array_equal(rank.steps.counted, steps_)
        ]
        files = [self._played[run.traces[index].path][0] for index in again]
        tasks = [
            (file, (self._cases or ()) if cases is None else cases[index], counted[index].tolist())
            for file, index in zip(files, again, strict=True)
        ]
        contracted = [b"" if index in again else rank.contracted for index, rank in enumerate(ranks)]
        for number, result in self._tasks.run(_contract, tasks, files):
            if isinstance(result, Lost):
                raise TraceqError(f"{files[number]}: the process that read it again died, possibly out of memory")
            contracted[again[number]] = result
        return joined(job, [unpack(of_rank, ContractedRank) for of_rank in contracted])

    def _of(self, run: Run) -> list[_PlayedRank]:
        return [self._played[trace.path][1] for trace in run.traces]


# ---- in the processes of an engine


def _play(file: Place, cases: Sequence[Case] | None) -> _PlayedRank | UnreadableInput:
    """Read one trace and return what is kept of it, or the error; `cases` are None where they depend on all ranks."""
    trace = read_or_fault(file)
    if isinstance(trace, UnreadableInput):
        return trace
    part = _part(trace, steps(trace).counted)
    return _PlayedRank(
        head=pack(head(trace)),
        outline=pack(outline(trace)),
        calls=pack(rank_calls(trace)),
        contracted=pack(contracted_part(part, cases or ())),
        waits=pack(rank_waits(trace) if cases is None else RankWaits(False, False, {})),
        loader_waits=tuple((step, *span) for step, span in loader_waits_by_step(part).items()),
    )


def _contract(file: Place, cases: Sequence[Case], counted: list[bool]) -> bytes:
    """Read one trace again and return its graph in some cases, if these are the steps that all ranks counted."""
    return pack(contracted_part(_part(read_one(file, strict=False), np.array(counted, np.bool_)), cases))


def _part(trace: Trace, counted: NDArray[np.bool_]) -> RankPart:
    return (device_part if len(device_work(trace)) else host_part)(trace, counted)
