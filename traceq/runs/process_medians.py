"""Unprofiled samples of arms that ran in separate processes: one value per process, the median of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from traceq.locations import Place
from traceq.model import Manifest, Processes
from traceq.runs.step_log import StepLine, rank_files, read_lines

__all__ = ["read_processes"]

_Steps: TypeAlias = Mapping[tuple[str, int], Sequence[StepLine]]
"""Counted steps by (arm, process)."""


def read_processes(folder: Place, manifest: Manifest) -> tuple[Processes, ...]:
    """Return the processes of each arm in a run's `steps` folder, in the recipe's order; none if arms share a process.

    Steps that a rank of the process lacks are left out, and so are processes without steps.
    """
    if not manifest.apart:
        return ()
    ranks = [_by_process(path) for path in rank_files(folder)]
    by_arm = (_of_arm(ranks[: manifest.num_ranks_of(arm.name)], arm.name) for arm in manifest.arms)
    return tuple(processes for processes in by_arm if processes.process.size)


def _by_process(path: Place) -> _Steps:
    steps: dict[tuple[str, int], list[StepLine]] = {}
    for line in read_lines(path):
        if isinstance(line, StepLine) and line.process >= 0 and line.pair >= 0:
            steps.setdefault((line.arm, line.process), []).append(line)
    return steps


def _of_arm(ranks: Sequence[_Steps], arm: str) -> Processes:
    rows = []
    for process in sorted({process for steps in ranks for name, process in steps if name == arm}):
        steps = list(zip(*(rank.get((arm, process), ()) for rank in ranks), strict=False))
        if steps:
            step_ns = [max(line.device_ns or line.wall_ns for line in step) for step in steps]
            peak_bytes = max(line.peak_bytes for step in steps for line in step)
            rows.append((process, round(float(np.median(step_ns))), len(steps), peak_bytes))
    return Processes(arm, *np.array(rows, np.int64).reshape(-1, 4).T)
