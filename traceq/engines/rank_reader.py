"""Reader of the ranks of a folder: their summaries, from the cache or an engine, and queries of some ranks.

An engine runs a function on many ranks, as a pool of processes or a cluster does, with equal results.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from traceq.cores import memory_of_container
from traceq.engines.cache import How, cache_key, load_summary, store_summary
from traceq.engines.rank_summary import (
    STEP_TOTALS,
    RankSummary,
    answer_queries,
    part_type,
    read_as,
    summarize,
    unpack,
)
from traceq.errors import TraceqError, UnreadableInput
from traceq.facts.comm.rank_collectives import RankCalls
from traceq.facts.ranks.job import (
    Job,
    LazySequence,
    RankQuery,
    RunRanks,
    job_from_outlines,
    query_here,
    ranks_in_memory,
)
from traceq.facts.ranks.rank_outline import Outline, counted_names, uncommon_steps
from traceq.facts.timeline.single_step import step_numbers
from traceq.frozen import frozen
from traceq.kineto.decompression import is_gzip, is_zstd
from traceq.locations import Place, Remote, open_binary
from traceq.model import Run, Trace
from traceq.runs.read import read_or_fault


@frozen
class Lost:
    """Result of a task whose process died repeatedly."""


Result = tuple[int, Any]
"""(index of the arguments, the function's return value or Lost)."""


class Engine(Protocol):
    """Executor of module-level functions in other processes."""

    def map(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], needs: Sequence[int]
    ) -> Iterator[Result]:
        """Yield results as they complete; `needs` is the maximum memory of each task in bytes."""
        ...


Start = Callable[[], AbstractContextManager[Engine]]
"""Function that starts an engine; called only if there is work for it."""


class SameProcess:
    """An engine without processes: it works on one rank after the other, in its caller's."""

    def map(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], needs: Sequence[int]
    ) -> Iterator[Result]:
        """Yield (index, what the function returned), in order."""
        return ((index, function(*each)) for index, each in enumerate(arguments))


_PER_BYTE, _BARE = 1.5, 100_000_000
"""Bytes that a worker takes per byte of an uncompressed trace, and without a trace: 1.5 times the maximum measured on
traces of 30 to 110 MB."""
_PACKED = 12
"""Assumed compression ratio of a trace where the archive does not give the uncompressed size."""
_UNKNOWN = 4_000_000_000
_LARGE = 500_000_000
_TRAILER_LIMIT = 2**28


class FileTasks:
    """Runner of tasks; without any, no engine is started."""

    def __init__(self, start: Callable[[], Engine]) -> None:
        self._start = start
        self._engine: Engine | None = None

    def run(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], files: Sequence[Place]
    ) -> Iterator[Result]:
        """Yield results as they complete; each task may use the memory that reading its file takes."""
        if arguments:
            self._engine = self._engine or self._start()
            yield from self._engine.map(function, arguments, [_needed_bytes(file) for file in files])


A = TypeVar("A")
T = TypeVar("T")

_MOST_EVENTS = 500_000
"""Events of all ranks up to which the traces behind a URL are kept, as each would have to be fetched again."""
_MOST_KEPT = 33
"""Traces of a run that `RunRanks.trace` keeps: the 32 ranks that a diff looks at together, and the first one."""


class RankReader:
    """Reader of the traces of a folder for some analyses.

    `summaries` by file, without the files of folders whose traces are small enough to stay in memory. `start` starts
    the engine on first use.
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
        self._tasks, self._on_progress = FileTasks(start), on_progress
        self._files: dict[str, Place] = {}
        self._left_out: dict[str, tuple[str, ...]] = {}  # steps, by file
        self.summaries: dict[str, RankSummary] = {}

    def read(self, files: Sequence[Place]) -> Iterable[Trace | UnreadableInput]:
        """Return per file the trace, without its events if the traces are large, or why it cannot be read."""
        if sum(map(plain_bytes, files)) <= self._small:
            return map(partial(read_or_fault, strict=self._how.strict), files)
        results = self._with_common_steps(files, self._summarized(files))
        self._files |= {str(file): file for file in files}
        self.summaries |= {
            str(file): summary for file, summary in zip(files, results, strict=True) if isinstance(summary, RankSummary)
        }
        return (
            replace(unpack(result.head, Trace), path=str(file)) if isinstance(result, RankSummary) else result
            for file, result in zip(files, results, strict=True)
        )

    def numbers(self, run: Run) -> dict[int, frozenset[int]]:
        """Return the step numbers of each rank; of a rank that is cut to one step, only that one."""
        outlines = (unpack(self.summaries[trace.path].outline, Outline) for trace in run.traces)
        return {rank.rank: step_numbers(rank.steps) for rank in outlines}

    def job(self, run: Run) -> Job:
        """Return the run as a job whose ranks are not in memory."""
        summaries = [self.summaries[trace.path] for trace in run.traces]
        return job_from_outlines(
            run,
            tuple(unpack(summary.outline, Outline) for summary in summaries),
            LazySequence(lambda index: unpack(summaries[index].calls, RankCalls), len(summaries)),
            self._query(run),
        )

    def ranks(self, run: Run) -> RunRanks:
        """Return the ranks of a run, whose traces are read again in this process where they are not in memory."""
        if not (run.traces and run.traces[0].path in self.summaries):
            return ranks_in_memory(run)
        files = {trace.rank: self._files[trace.path] for trace in run.traces}
        trace = lru_cache(_MOST_KEPT)(lambda rank: read_as(files[rank], *self._how_of(files[rank])))
        job = replace(self.job(run), query=query_here(trace))
        return RunRanks(run, job, tuple(self.parts(run, STEP_TOTALS)), trace)

    def _query(self, run: Run) -> RankQuery:
        summaries = {trace.rank: self.summaries[trace.path] for trace in run.traces}
        if all(summary.whole for summary in summaries.values()):
            return query_here(lambda rank: unpack(summaries[rank].whole, Trace))
        return _RankQueries(
            self._tasks.run, {trace.rank: self._files[trace.path] for trace in run.traces}, self._how_of
        )

    def parts(self, run: Run, name: str) -> LazySequence[Any]:
        """Return the ranks' summaries for one analysis, each decoded anew on every access."""
        parts, type_ = [self.summaries[trace.path].part(name) for trace in run.traces], part_type(name)
        return LazySequence(lambda index: unpack(parts[index], type_), len(parts))

    def _how_of(self, file: Place) -> How:
        return self._how._replace(left_out=self._left_out.get(str(file), ()))

    def _with_common_steps(
        self, files: Sequence[Place], results: Sequence[RankSummary | UnreadableInput]
    ) -> Sequence[RankSummary | UnreadableInput]:
        """Return the results, anew of ranks that count steps of which others have only a part."""
        outlines = {
            number: unpack(result.outline, Outline)
            for number, result in enumerate(results)
            if isinstance(result, RankSummary)
        }
        uncommon = uncommon_steps(list(outlines.values()))
        again = [number for number, each in outlines.items() if uncommon & counted_names(each.steps)]
        if not again:
            return results
        self._left_out |= {str(files[number]): tuple(sorted(uncommon)) for number in again}
        renewed = dict(zip(again, self._summarized([files[number] for number in again]), strict=True))
        return [renewed.get(number, result) for number, result in enumerate(results)]

    def _summarized(self, files: Sequence[Place]) -> list[RankSummary | UnreadableInput]:
        results: dict[int, RankSummary | UnreadableInput] = {}
        for index, file in enumerate(files):
            if (summary := load_summary(file, self._names, self._how_of(file))) is not None:
                results[index] = summary
        missing = [index for index in range(len(files)) if index not in results]
        most_kept = _MOST_EVENTS // len(files) if any(isinstance(file, Remote) for file in files) else 0
        arguments = [(files[index], self._names, *self._how_of(files[index]), most_kept) for index in missing]
        keys = [cache_key(files[index], self._how_of(files[index])) for index in missing]
        if missing:
            self._on_progress(len(results), len(files))
        for number, result in self._tasks.run(summarize, arguments, [files[index] for index in missing]):
            results[missing[number]] = self._stored(files[missing[number]], result, keys[number])
            self._on_progress(len(results), len(files))
        return [results[index] for index in range(len(files))]

    def _stored(
        self, file: Place, result: RankSummary | UnreadableInput | Lost, key: bytes
    ) -> RankSummary | UnreadableInput:
        if isinstance(result, Lost):
            return UnreadableInput(str(file), "the process that read it died, possibly out of memory")
        if isinstance(result, RankSummary):
            store_summary(file, result, self._how_of(file), key)
        return result


class _RankQueries:
    """Queries of some ranks, each of which is read once more for all of its queries."""

    def __init__(
        self, run: Callable[..., Iterator[Result]], files: dict[int, Place], how_of: Callable[[Place], How]
    ) -> None:
        self._run, self._files, self._how_of = run, files, how_of

    def __call__(self, question: Callable[[Trace, A], T], arguments: Sequence[tuple[int, A]], /) -> list[T]:
        by_rank: dict[int, list[A]] = {}
        for rank, argument in arguments:
            by_rank.setdefault(rank, []).append(argument)
        ranks, files = list(by_rank), [self._files[rank] for rank in by_rank]
        tasks = [
            (self._files[rank], *self._how_of(self._files[rank]), question, of_rank)
            for rank, of_rank in by_rank.items()
        ]
        answers: dict[int, Iterator[T]] = {}
        for index, result in self._run(answer_queries, tasks, files):
            if isinstance(result, Lost):
                raise TraceqError(f"{files[index]}: the process that read it again died, possibly out of memory")
            answers[ranks[index]] = iter(result)
        return [next(answers[rank]) for rank, _ in arguments]


def free_bytes() -> int:
    """Return the bytes of memory that can be used without swapping, within a container's limits; 4 GB if unknown."""
    limit, used = memory_of_container()
    limits = [_meminfo(), limit - used if limit else None]
    return max(min((free for free in limits if free is not None), default=_UNKNOWN), 0)


def _needed_bytes(file: Place) -> int:
    """Return the maximum memory in bytes of a process that reads a trace, by the size of the file."""
    return int(_PER_BYTE * plain_bytes(file)) + _BARE


def plain_bytes(file: Place) -> int:
    """Return the uncompressed size of a trace in bytes, 0 for a missing file.

    It is exact for plain files and for gzip files that are small enough for the 32-bit size in their trailer, else an
    estimate; remote files of unknown size count as large ones.
    """
    if isinstance(file, Remote):
        packed = file.name.endswith((".gz", ".zst"))
        return _LARGE if file.size < 0 else file.size * (_PACKED if packed else 1)
    try:
        size = file.stat().st_size
        with open_binary(file) as stream:
            magic = stream.read(4)
            if not is_gzip(magic) and not is_zstd(magic):
                return size
            if is_zstd(magic) or size > _TRAILER_LIMIT:
                return _PACKED * size
            stream.seek(-4, os.SEEK_END)
            return max(int.from_bytes(stream.read(4), "little"), size)
    except OSError:
        return 0


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next((line for line in lines if line.startswith("MemAvailable:")), "")
        return int(available.split()[1]) * 1024
    except (OSError, IndexError):
        return _by_pages()


def _by_pages() -> int | None:
    """Return half of the machine's memory, where the free part is unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return None
