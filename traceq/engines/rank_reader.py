"""The ranks of one folder: what is left of each, by the cache or by an engine that reads it, and a second look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from traceq.engines.cache import How, known, remember
from traceq.engines.codec import unpack
from traceq.engines.engine import Engine, Lost, Result
from traceq.engines.memory_budget import needed_bytes, plain_bytes
from traceq.engines.rank_summary import RankSummary, answers, part_type, summarize
from traceq.errors import TraceqError, UnreadableInput
from traceq.facts.comm.rank_collectives import OwnCalls
from traceq.facts.ranks.job import Job, LazySequence, job_by
from traceq.facts.ranks.rank_outline import Outline
from traceq.locations import Place
from traceq.model import Run, Trace
from traceq.runs.read import read_one
from traceq.runs.single_step import numbers_of

__all__ = ["Ranks"]

A = TypeVar("A")
T = TypeVar("T")


class Ranks:
    """Reads the traces of a folder for some analyses; `summaries` by file, empty where they are small enough to stay.

    `start` gives the engine, when there is something for it to do.
    """

    def __init__(
        self,
        names: Sequence[str],
        how: How,
        small: int,
        start: Callable[[], Engine],
        on_progress: Callable[[int, int], None],
    ) -> None:
        self._names, self._how, self._small = names, how, small
        self._start, self._on_progress = start, on_progress
        self._engine: Engine | None = None
        self._files: dict[str, Place] = {}
        self.summaries: dict[str, RankSummary] = {}

    def read(self, files: Sequence[Place]) -> Iterable[Trace | UnreadableInput]:
        """Each trace, without its events if there are many; or why it is none."""
        if sum(map(plain_bytes, files)) <= self._small:
            return map(self._read_here, files)
        told, self._files = self._summarized(files), {str(file): file for file in files}
        self.summaries = {str(file): one for file, one in zip(files, told, strict=True) if isinstance(one, RankSummary)}
        return (unpack(one.head, Trace) if isinstance(one, RankSummary) else one for one in told)

    def numbers(self, run: Run) -> dict[int, frozenset[int]]:
        """Numbers of the steps of each rank; of a rank that is cut to one, that."""
        outlines = (unpack(self.summaries[trace.path].outline, Outline) for trace in run.traces)
        return {rank.rank: numbers_of(rank.steps) for rank in outlines}

    def job(self, run: Run) -> Job:
        """The run as a job whose ranks are not in memory."""
        left = [self.summaries[trace.path] for trace in run.traces]
        return job_by(
            run,
            tuple(unpack(one.outline, Outline) for one in left),
            LazySequence(lambda at: unpack(left[at].calls, OwnCalls), len(left)),
            _Look(self._run, {trace.rank: self._files[trace.path] for trace in run.traces}, self._how),
        )

    def parts(self, run: Run, name: str) -> LazySequence[Any]:
        """What the ranks left for one analysis, taken from its bytes each time that it is asked for."""
        parts, type_ = [self.summaries[trace.path].part(name) for trace in run.traces], part_type(name)
        return LazySequence(lambda at: unpack(parts[at], type_), len(parts))

    def _summarized(self, files: Sequence[Place]) -> list[RankSummary | UnreadableInput]:
        found: dict[int, RankSummary | UnreadableInput] = {}
        for at, file in enumerate(files):
            if (summary := known(file, self._names, self._how)) is not None:
                found[at] = summary
        missing = [at for at in range(len(files)) if at not in found]
        arguments = [(files[at], self._names, *self._how) for at in missing]
        for number, result in self._run(summarize, arguments, [files[at] for at in missing]):
            found[missing[number]] = self._kept(files[missing[number]], result)
            self._on_progress(len(found), len(files))
        return [found[at] for at in range(len(files))]

    def _kept(self, file: Place, result: RankSummary | UnreadableInput | Lost) -> RankSummary | UnreadableInput:
        if isinstance(result, Lost):
            return UnreadableInput(str(file), "the process that read it died, for lack of memory perhaps")
        if isinstance(result, RankSummary):
            remember(file, result, self._how)
        return result

    def _read_here(self, file: Place) -> Trace | UnreadableInput:
        try:
            return read_one(file, strict=self._how.strict)
        except UnreadableInput as fault:
            return fault

    def _run(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], files: Sequence[Place]
    ) -> Iterator[Result]:
        if arguments:
            self._engine = self._engine or self._start()
            yield from self._engine.map(function, arguments, [needed_bytes(file) for file in files])


class _Look:
    """A second look at some ranks, each of which is read once more for all that is asked of it."""

    def __init__(self, run: Callable[..., Iterator[Result]], files: dict[int, Place], how: How) -> None:
        self._run, self._files, self._how = run, files, how

    def __call__(self, question: Callable[[Trace, A], T], asked: Sequence[tuple[int, A]]) -> list[T]:
        ranks = list(dict.fromkeys(rank for rank, _ in asked))
        files = [self._files[rank] for rank in ranks]
        what = [[one for of, one in asked if of == rank] for rank in ranks]
        arguments = [(file, *self._how, question, own) for file, own in zip(files, what, strict=True)]
        told: dict[int, Iterator[T]] = {}
        for at, result in self._run(answers, arguments, files):
            if isinstance(result, Lost):
                raise TraceqError(f"{files[at]}: the process that read it once more died, for lack of memory perhaps")
            told[ranks[at]] = iter(result)
        return [next(told[rank]) for rank, _ in asked]
