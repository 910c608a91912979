"""Unprofiled steps of one arm as columns: what its phases took, on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.locations import Place
from traceq.model import Timings
from traceq.runs.step_log import StepLine, rank_files, read_lines

__all__ = ["SETTLING", "WARM_UP", "read_timings", "timings_of"]

WARM_UP, SETTLING = -1, -2
"""What stands for the pair of a step before anything counts, and of the steps that follow a pause."""


def read_timings(folder: Place, arm: str, phases: Sequence[str] = ()) -> Timings | None:
    """What a run's `steps` folder holds of an arm; None where no step of it counts. `phases`: those it may have."""
    ranks = [[line for line in read_lines(path) if isinstance(line, StepLine)] for path in rank_files(folder)]
    return timings_of(ranks, arm, phases)


def timings_of(ranks: Sequence[Sequence[StepLine]], arm: str, phases: Sequence[str] = ()) -> Timings | None:
    """The arm's steps that count, as many as every rank has that has any; None without one."""
    found = [steps for lines in ranks if (steps := tuple(_counted(lines, arm)))]
    if not found:
        return None
    ranks_steps = [steps[: min(map(len, found))] for steps in found]
    lines = [[step.line for step in steps] for steps in ranks_steps]
    names = tuple(dict.fromkeys([*phases, *(name for mine in lines for line in mine for name in line.phases)]))
    by_device = all(line.device_ns and bool(line.device_phases) == bool(line.phases) for mine in lines for line in mine)
    on_device = bool(lines[0][0].device_ns)
    host_ns = _table([[line.phases for line in mine] for mine in lines], names)
    peak = np.array([max(line.peak_bytes for line in mine) for mine in lines], np.int64)
    return Timings(
        phases=names,
        step_ns=np.array(
            [[line.device_ns if by_device else line.wall_ns for line in mine] for mine in lines], np.int64
        ),
        phase_ns=_table([[line.device_phases for line in mine] for mine in lines], names) if by_device else host_ns,
        host_phase_ns=host_ns,
        since_pause=np.array([step.since_pause for step in ranks_steps[0]], np.int64),
        peak_allocated=peak if on_device else np.zeros_like(peak),
        peak_reserved=np.array([max(line.reserved_bytes for line in mine) for mine in lines], np.int64),
        peak_process=np.zeros_like(peak) if on_device else peak,
        num_warmup=_num_warmup(next(mine for mine in ranks if any(_counted(mine, arm))), arm),
        by_device=by_device,
    )


@dataclass(frozen=True, slots=True)
class _Step:
    line: StepLine
    since_pause: int


def _counted(lines: Sequence[StepLine], arm: str) -> Iterator[_Step]:
    """Steps of the arm that count: on a device the first step of a half settles, where there are more."""
    longer = any(line.index for line in lines)
    since_pause, before = 0, WARM_UP
    for line in lines:
        since_pause = 0 if line.pair < 0 and line.pair != before else since_pause + 1
        before = line.pair
        if line.arm == arm and line.pair >= 0 and not (longer and line.device_ns and line.index == 0):
            yield _Step(line, since_pause)


def _num_warmup(lines: Sequence[StepLine], arm: str) -> int:
    """Steps of the arm before its first that counts; later processes warm up again."""
    mine = [line.pair for line in lines if line.arm == arm]
    first = next(at for at, pair in enumerate(mine) if pair >= 0)
    return mine[:first].count(WARM_UP)


def _table(ranks: Sequence[Sequence[Mapping[str, int]]], names: Sequence[str]) -> NDArray[np.int64]:
    """int64[R, S, P]; 0 where a step never entered the phase."""
    values = [[[phases.get(name, 0) for name in names] for phases in mine] for mine in ranks]
    return np.array(values, np.int64).reshape(len(ranks), len(ranks[0]), len(names))
