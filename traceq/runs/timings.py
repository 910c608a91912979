"""Unprofiled steps of one arm as columns: durations of its steps and phases, on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.locations import Place
from traceq.model import Manifest, PairedSteps, Pauses, Processes, Timings
from traceq.runs.step_log import StepLine, pause_name, rank_files, read_lines

_Steps: TypeAlias = Mapping[tuple[str, int], Sequence[StepLine]]
"""Counted steps by (arm, process)."""

WARM_UP, SETTLING = -1, -2
"""Pair numbers of steps that do not count: during warm-up, and after a pause."""


def timings_of(ranks: Sequence[Sequence[StepLine]], arm: str, phases: Sequence[str] = ()) -> Timings | None:
    """Return the counted steps of an arm, as many as all ranks that have any have; None without one."""
    counted = [steps for lines in ranks if (steps := tuple(_counted(lines, arm)))]
    if not counted:
        return None
    ranks_steps = [steps[: min(map(len, counted))] for steps in counted]
    lines = [[step.line for step in steps] for steps in ranks_steps]
    names = tuple(dict.fromkeys([*phases, *(name for rank in lines for line in rank for name in line.phases)]))
    by_device = all(line.device_ns and bool(line.device_phases) == bool(line.phases) for rank in lines for line in rank)
    on_device = bool(lines[0][0].device_ns)
    host_ns = _table([[line.phases for line in rank] for rank in lines], names)
    peak = np.array([max(line.peak_bytes for line in rank) for rank in lines], np.int64)
    return Timings(
        phases=names,
        step_ns=np.array(
            [[line.device_ns if by_device else line.wall_ns for line in rank] for rank in lines], np.int64
        ),
        phase_ns=_table([[line.device_phases for line in rank] for rank in lines], names) if by_device else host_ns,
        host_phase_ns=host_ns,
        since_pause=np.array([step.since_pause for step in ranks_steps[0]], np.int64),
        peak_allocated=peak if on_device else np.zeros_like(peak),
        peak_reserved=np.array([max(line.reserved_bytes for line in rank) for rank in lines], np.int64),
        peak_process=np.zeros_like(peak) if on_device else peak,
        num_warmup=_num_warmup(next(rank for rank in ranks if any(_counted(rank, arm))), arm),
        by_device=by_device,
        host_step_ns=np.array([[line.wall_ns for line in rank] for rank in lines], np.int64),
        of_pairs=_of_pairs(lines[0]),
        cpu_ns=np.array([[line.cpu_ns for line in rank] for rank in lines], np.int64),
        pauses=max(map(_pauses, lines), key=lambda pauses: sum(each.ns for each in pauses)),
    )


def _pauses(lines: Sequence[StepLine]) -> tuple[Pauses, ...]:
    """Return the garbage collections of one rank's steps, longest in all first."""
    sums: dict[str, tuple[int, int]] = {}
    for line in lines:
        for kind, (num, ns) in line.pauses.items():
            before = sums.get(kind, (0, 0))
            sums[kind] = before[0] + num, before[1] + ns
    pauses = (Pauses(pause_name(kind), num, ns) for kind, (num, ns) in sums.items())
    return tuple(sorted(pauses, key=lambda each: -each.ns))


def _of_pairs(lines: Sequence[StepLine]) -> PairedSteps:
    pair, half = (np.array([getattr(line, name) for line in lines], np.int64) for name in ("pair", "half"))
    return PairedSteps(pair, half, tuple(line.a if line.arm == line.b else line.b for line in lines))


@frozen
class _Step:
    """A step that counts, and how many steps of its half were before it."""

    line: StepLine
    since_pause: int


def _counted(lines: Sequence[StepLine], arm: str) -> Iterator[_Step]:
    """Yield the counted steps of an arm; the first step of a half does not count if there are more."""
    has_long_halves = any(line.index for line in lines)
    since_pause, before = 0, WARM_UP
    for line in lines:
        since_pause = 0 if line.pair < 0 and line.pair != before else since_pause + 1
        before = line.pair
        if line.arm == arm and line.pair >= 0 and not (has_long_halves and line.index == 0):
            yield _Step(line, since_pause)


def _num_warmup(lines: Sequence[StepLine], arm: str) -> int:
    """Return the number of steps of an arm before its first counted one; later processes warm up again."""
    pairs = [line.pair for line in lines if line.arm == arm]
    first = next(index for index, pair in enumerate(pairs) if pair >= 0)
    return pairs[:first].count(WARM_UP)


def _table(ranks: Sequence[Sequence[Mapping[str, int]]], names: Sequence[str]) -> NDArray[np.int64]:
    """Return int64[R, S, P] ns; 0 where a step never entered the phase."""
    values = [[[phases.get(name, 0) for name in names] for phases in rank] for rank in ranks]
    return np.array(values, np.int64).reshape(len(ranks), len(ranks[0]), len(names))


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
