"""Unprofiled samples of arms that ran in processes of their own: each process is one value, the median of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from traceq.locations import Place
from traceq.model import Manifest, Processes
from traceq.runs.step_log import StepLine, rank_files, read_lines

__all__ = ["read_processes"]

_Steps: TypeAlias = Mapping[tuple[str, int], Sequence[StepLine]]
"""Steps that count, by arm and process."""


def read_processes(folder: Place, manifest: Manifest) -> tuple[Processes, ...]:
    """What a run's `steps` folder holds of each arm, in the recipe's order; nothing where arms share a process.

    A step that any rank of its process lacks is left out, and so is a process without steps.
    """
    if not manifest.apart:
        return ()
    ranks = [_by_process(path) for path in rank_files(folder)]
    found = (_of_arm(ranks[: manifest.ranks_of(arm.name)], arm.name) for arm in manifest.arms)
    return tuple(processes for processes in found if processes.process.size)


def _by_process(path: Place) -> _Steps:
    found: dict[tuple[str, int], list[StepLine]] = {}
    for line in read_lines(path):
        if isinstance(line, StepLine) and line.process >= 0 and line.pair >= 0:
            found.setdefault((line.arm, line.process), []).append(line)
    return found


def _of_arm(ranks: Sequence[_Steps], arm: str) -> Processes:
    mine = sorted({process for steps in ranks for name, process in steps if name == arm})
    kept = []
    for process in mine:
        steps = list(zip(*(rank.get((arm, process), ()) for rank in ranks), strict=False))
        if steps:
            job_ns = [max(line.device_ns or line.wall_ns for line in step) for step in steps]
            peak_bytes = max(line.peak_bytes for step in steps for line in step)
            kept.append((process, round(float(np.median(job_ns))), len(steps), peak_bytes))
    return Processes(arm, *np.array(kept, np.int64).reshape(-1, 4).T)
