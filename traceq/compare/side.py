"""One side of a diff: the recording of one process, or of several that repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceq.model import Caveat, Run
from traceq.runs.read import read
from traceq.runs.sides import read_side
from traceq.stats import slowest_rank_ns

__all__ = ["Side"]


@dataclass(frozen=True, slots=True)
class Side:
    """`run` is explained: of several recordings the one whose unprofiled step is in the middle. `runs` are all of them,
    and `processes` has for each the median unprofiled step of every process, ns: one where arms share a process.
    """

    run: Run
    runs: tuple[Run, ...]
    processes: tuple[tuple[float, ...], ...]
    path: str

    @staticmethod
    def of(side: str | Path | Run) -> Side:
        """The side at a path, or of a run that was read before. Raises UnreadableInput."""
        if isinstance(side, Run):
            return Side(side, (side,), (_unprofiled_medians(side),), side.path)
        runs = read_side(side)
        medians = tuple(map(_unprofiled_medians, runs))
        if len(runs) == 1:
            return Side(runs[0], runs, medians, runs[0].path)
        return Side(_whole(runs[_middle(medians)]), runs, medians, str(side))

    @property
    def steps_ns(self) -> NDArray[np.int64]:
        """int64[N]: the median unprofiled step of each process that has one."""
        return np.array([median for medians in self.processes for median in medians], np.float64).astype(np.int64)

    @property
    def samples(self) -> int:
        """Samples of one step of all ranks; 0 where the recording does not tell."""
        arm = self.run.manifest.arm(self.run.arm) if self.run.manifest is not None else None
        return arm.samples_per_step if arm else 0

    @property
    def is_repeated(self) -> bool:
        """Several recordings."""
        return len(self.runs) > 1

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Doubts about every recording; of several each says which one it is about."""
        if not self.is_repeated:
            return self.run.caveats
        told = [Caveat(doubt.code, f"{run.path}: {doubt.text}") for run in self.runs for doubt in run.caveats]
        empty = [run.path for run, medians in zip(self.runs, self.processes, strict=True) if not medians]
        left_out = [Caveat("no_steps", f"{path}: no unprofiled steps; this process is left out") for path in empty]
        if self.run.traces:
            text = f"{self.run.path}: of {len(self.runs)} recordings this one, in the middle, explains the difference"
            left_out.append(Caveat("one_process_explains", text))
        of_recordings = {doubt for run in self.runs for doubt in run.caveats}
        return (*told, *left_out, *(doubt for doubt in self.run.caveats if doubt not in of_recordings))


def _whole(run: Run) -> Run:
    """The same recording with its traces, where it has some."""
    return read(run.path) if run.manifest is not None and not run.traces else run


def _middle(medians: Sequence[Sequence[float]]) -> int:
    """Which of the recordings that have steps is in the middle; the first where none has."""
    known = sorted((float(np.median(found)), at) for at, found in enumerate(medians) if found)
    return known[(len(known) - 1) // 2][1] if known else 0


def _unprofiled_medians(run: Run) -> tuple[float, ...]:
    """Median unprofiled step of the run's arm in each process that has some: in all pairs, as these share a process."""
    for found in run.processes:
        if found.arm == run.arm:
            return tuple(map(float, found.median_ns))
    mine = [pairs for pairs in run.pairs if pairs.b_second.size and run.arm in (pairs.a, pairs.b)]
    values = [slowest_rank_ns(pairs, of_b=pairs.b == run.arm) for pairs in mine]
    return (float(np.median(np.concatenate(values))),) if values else ()
