"""One side of a diff: the recording of one process, or of several that repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.model import Run
from traceq.runs.read import read
from traceq.runs.sides import read_side
from traceq.stats import slowest_rank_ns

__all__ = ["Side", "of_one_run"]


@frozen
class Side:
    """One side: `run` is the recording that is explained, of several the one with the median unprofiled step.

    `runs` are all recordings; `processes` has for each the median unprofiled step of every process, ns: one where arms
    share a process.
    """

    run: Run
    runs: tuple[Run, ...]
    processes: tuple[tuple[float, ...], ...]
    path: str

    @staticmethod
    def of(side: str | Path | Run) -> Side:
        """Return the side at a path, or of a run that was read before. Raises UnreadableInput."""
        if isinstance(side, Run):
            return Side(side, (side,), (_unprofiled_medians(side),), side.path)
        runs = read_side(side)
        medians = tuple(map(_unprofiled_medians, runs))
        if len(runs) == 1:
            return Side(runs[0], runs, medians, runs[0].path)
        return Side(_with_traces(runs[_middle(medians)]), runs, medians, str(side))

    @property
    def steps_ns(self) -> NDArray[np.int64]:
        """int64[N] ns: median unprofiled step of each process that has one."""
        return np.array([median for medians in self.processes for median in medians], np.float64).astype(np.int64)

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


def _with_traces(run: Run) -> Run:
    """Return the recording with its traces, where it has some."""
    return read(run.path) if run.manifest is not None and not run.traces else run


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
