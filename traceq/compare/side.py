"""One side of a diff: the recording of one process, or of several that repeat it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceq.facts.ranks.job import RunRanks, ranks_in_memory
from traceq.frozen import frozen
from traceq.locations import Place
from traceq.model import Run, Trace
from traceq.runs.read import read, read_arms
from traceq.runs.sides import members_of_side, read_recordings
from traceq.stats import slowest_rank_ns

ReadRanks = Callable[[str | Place], RunRanks]
"""Reader of a path as the ranks of a run."""

ReadArms = Callable[[str | Place], Sequence[RunRanks]]
"""Reader of a recorded run as the ranks of each of its arms."""


def read_into_memory(path: str | Place) -> RunRanks:
    """Return the ranks of the run at a path, with all traces. Raises UnreadableInput."""
    return ranks_in_memory(read(path))


def read_arms_into_memory(path: str | Place) -> tuple[RunRanks, ...]:
    """Return the ranks of the arms of the recorded run at a path, with all traces. Raises UnreadableInput."""
    return tuple(map(ranks_in_memory, read_arms(path)))


@frozen
class Side:
    """One side: `ranks` are of the recording that is explained, of several the one with the median unprofiled step.

    `runs` are all recordings; `processes` has for each the median unprofiled step of every process, ns: one where arms
    share a process.
    """

    ranks: RunRanks
    runs: tuple[Run, ...]
    processes: tuple[tuple[float, ...], ...]
    path: str

    @staticmethod
    def of(side: str | Path | Run | RunRanks, read_ranks: ReadRanks = read_into_memory) -> Side:
        """Return the side at a path, or of a run that was read before. Raises UnreadableInput."""
        if isinstance(side, Run | RunRanks):
            return _one_recording(side if isinstance(side, RunRanks) else ranks_in_memory(side))
        members = members_of_side(side)
        if len(members) == 1:
            return _one_recording(read_ranks(members[0]))
        runs = read_recordings(side, members)
        medians = tuple(map(_unprofiled_medians, runs))
        middle = runs[_middle(medians)]
        is_untraced = middle.manifest is not None and not middle.traces
        return Side(read_ranks(middle.path) if is_untraced else ranks_in_memory(middle), runs, medians, str(side))

    @property
    def run(self) -> Run:
        """The recording that is explained; its traces may lack their events."""
        return self.ranks.run

    def first_trace(self) -> Trace:
        """Return the trace of its first rank."""
        return self.ranks.trace(self.run.ranks[0])

    def trace_or_first(self, rank: int) -> Trace:
        """Return the trace of a rank; of a side that lacks it the first one."""
        return self.ranks.trace(rank) if rank in self.run.ranks else self.first_trace()

    @property
    def steps_ns(self) -> NDArray[np.int64]:
        """int64[N] ns: median unprofiled step of each process that has one."""
        return np.array([median for medians in self.processes for median in medians], np.float64).astype(np.int64)

    @property
    def folder(self) -> str:
        """Path of its recording, without the arm."""
        return self.path.removesuffix(f"/{self.run.arm}") if self.run.arm else self.path

    @property
    def samples(self) -> int:
        """Samples per step of all ranks; 0 where not recorded."""
        arm = self.run.manifest.arm(self.run.arm) if self.run.manifest is not None else None
        return arm.samples_per_step if arm else 0

    @property
    def is_repeated(self) -> bool:
        """Whether the side has several recordings."""
        return len(self.runs) > 1

    @property
    def is_isolated(self) -> bool:
        """Whether each arm of the recording ran in processes of its own."""
        return self.run.manifest is not None and self.run.manifest.apart


def of_one_run(a: Side, b: Side) -> bool:
    """Return whether the sides are arms of one recorded run."""
    ours, theirs = a.run.manifest, b.run.manifest
    if a.is_repeated or b.is_repeated or ours is None or theirs is None:
        return False
    return ours.run_id == theirs.run_id


def _one_recording(ranks: RunRanks) -> Side:
    return Side(ranks, (ranks.run,), (_unprofiled_medians(ranks.run),), ranks.run.path)


def _middle(medians: Sequence[Sequence[float]]) -> int:
    """Return the index of the recording with the median step; the first where none has steps."""
    ranked = sorted((float(np.median(values)), index) for index, values in enumerate(medians) if values)
    return ranked[(len(ranked) - 1) // 2][1] if ranked else 0


def _unprofiled_medians(run: Run) -> tuple[float, ...]:
    """Return the median unprofiled step of the run's arm in each process that has some; all pairs share a process."""
    for processes in run.processes:
        if processes.arm == run.arm:
            return tuple(map(float, processes.median_ns))
    of_arm = [pairs for pairs in run.pairs if pairs.b_second.size and run.arm in (pairs.a, pairs.b)]
    values = [slowest_rank_ns(pairs, of_b=pairs.b == run.arm) for pairs in of_arm]
    return (float(np.median(np.concatenate(values))),) if values else ()


_TRACE_SUFFIX = re.compile(r"(\.\d{10,}|_\d+\.\d{10,})?(\.pt)?(\.trace)?\.json(\.gz|\.zst)?$")
"""What a profiler adds to the name of a trace: its process, its time, and what it is."""


def side_names(a: Side, b: Side) -> tuple[str, str]:
    """Return the names of the sides: their arms or files, else their folders, else A and B."""
    for names in ([side.run.arm or _stem(Path(side.path)) for side in (a, b)], [_folder(side) for side in (a, b)]):
        if names[0] != names[1]:
            return names[0], names[1]
    return "A", "B"


def _folder(side: Side) -> str:
    path = Path(side.path)
    return _stem(path.parent if path.name == side.run.arm else path)


def _stem(path: Path) -> str:
    """Return a file's name without what says that it is a trace; dots in a name stay (`Qwen1.5-0.5B`)."""
    return _TRACE_SUFFIX.sub("", path.name) or path.name
