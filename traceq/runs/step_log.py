"""Unprofiled samples: on disk one JSON line per step and per pair, written by ranks; in memory columns of an arm.

`kind` is the type of a line. Format 1 (2026): step, pair, clocks, cores; a pair may have `num_looks` and CPU times.
Unknown keys are ignored. Older recordings have no -2, no `device_phases`, no `reserved_bytes`, no `process` and no
cores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.errors import UnreadableInput
from traceq.frozen import frozen
from traceq.locations import Most, Place, open_binary
from traceq.model import EventKind, Manifest, PairedEvents, PairedSteps, Pairs, Pauses, Processes, Timings

EXACT = 1 << 53
Number = Annotated[int, msgspec.Meta(ge=-EXACT, le=EXACT)]
"""Integer that JSON holds exactly: 104 days in ns, 8 PiB."""
Count = Annotated[int, msgspec.Meta(ge=0, le=EXACT)]


class StepLine(msgspec.Struct, frozen=True, tag="step", tag_field="kind", omit_defaults=True):
    """Unprofiled step. `pair` is -1 during warm-up, and -2 while times settle after a pause of the recording.

    `phases` ns by name; `wall_ns` from the end of the previous step; `cpu_ns` of the main thread; `device_ns` between
    the step-end events of the device, 0 without one; `device_phases` ns by name between the events of each phase;
    `peak_bytes` allocated in the half (CUDA) or by the process (CPU), `reserved_bytes` by CUDA's allocator. If arms ran
    in separate processes, `process` is the number of the process in the recording, and `pair` counts its steps.
    `pauses`: number and ns of garbage collections by `pause_kind`; `allocated`: objects that the enabled collector
    counted in the step, less those that were freed.
    """

    arm: str
    a: str
    b: str
    pair: Number
    half: Number
    index: Number
    phases: Mapping[str, Number]
    wall_ns: Number
    cpu_ns: Number
    device_ns: Number
    peak_bytes: Number
    device_phases: Mapping[str, Number] = {}
    reserved_bytes: Number = 0
    process: Number = -1
    pauses: Mapping[str, tuple[Count, Count]] = {}
    allocated: Number = 0


def pause_kind(generation: int, line: str = "") -> str:
    """Return `2`, an automatic collection of a generation, or `2 train.py:10`, one that this line asks for."""
    return f"{generation} {line}" if line else str(generation)


def pause_name(kind: str) -> str:
    """Return `garbage collection of generation 2` or `gc.collect(2) at train.py:10`."""
    generation, _, line = kind.partition(" ")
    return f"gc.collect({generation}) at {line}" if line else f"garbage collection of generation {generation}"


class HalfPauses(msgspec.Struct, frozen=True):
    """Garbage collections of one half of a pair: `num_steps` of it, and objects `allocated` in all of them.

    `kinds`: number and ns in all steps, and ns per step that counts, by `pause_kind`.
    """

    num_steps: Count
    allocated: Number
    kinds: Mapping[str, tuple[Count, Count, Count]]


_NONE = HalfPauses(0, 0, {})


class PairLine(msgspec.Struct, frozen=True, tag="pair", tag_field="kind", omit_defaults=True):
    """Counted times of one pair: ns per step of each half. `b_second`: it ran A then B.

    `num_looks` is present if timing may stop before all planned pairs, see `Pairs`; `first_cpu_ns` and `second_cpu_ns`,
    the main thread's CPU time, if there is no device. Older recordings have no pauses.
    """

    a: str
    b: str
    pair: Number
    b_second: bool
    first_ns: Number
    second_ns: Number
    num_looks: Number = 1
    first_cpu_ns: Number = 0
    second_cpu_ns: Number = 0
    first_pauses: HalfPauses | None = None
    second_pauses: HalfPauses | None = None


class ClocksLine(msgspec.Struct, frozen=True, tag="clocks", tag_field="kind"):
    """State of the device before a group, if NVML is available. `throttle` is NVML's bit mask of reasons."""

    sm_mhz: int
    memory_mhz: int
    throttle: int
    celsius: int


class CoresLine(msgspec.Struct, frozen=True, tag="cores", tag_field="kind"):
    """CPU time of a rank in a block of steps of the baseline, and how long its threads waited for a core, ns.

    `worker_ns` of all workers of its data loader, of which there are `num_workers`. Waits are added up over threads,
    but `thread_wait_ns` is of that thread of the process that waits longest; `machine_ns` is added up over the cores of
    the host, 0 where the rank may not use all of them.
    """

    num_steps: Number
    wall_ns: Number
    process_ns: Number
    worker_ns: Number
    process_wait_ns: Number
    thread_wait_ns: Number
    worker_wait_ns: Number
    machine_ns: Number
    num_workers: Number


Line: TypeAlias = StepLine | PairLine | ClocksLine | CoresLine

_SAMPLES = re.compile(r"^rank(\d+)\.jsonl$")
_DECODER = msgspec.json.Decoder(Line)


def read_lines(path: Place) -> Iterator[Line]:
    """Yield the lines of one rank's file in order, without an incomplete last line. Raises UnreadableInput."""
    with open_binary(path) as file:
        for number, text in enumerate(iter(partial(file.readline, Most.STEP_LINE), b""), start=1):
            if not text.endswith(b"\n"):
                return
            try:
                yield _DECODER.decode(text)
            except msgspec.MsgspecError as fault:
                raise UnreadableInput(
                    f"{path}: line {number}", str(fault), "a step, a pair, clocks or cores"
                ) from fault


def rank_files(folder: Place) -> list[Place]:
    """Return the files of a run's `steps` folder, by rank."""
    files = folder.iterdir() if folder.is_dir() else ()
    of_rank = {int(match[1]): file for file in files if (match := _SAMPLES.match(file.name))}
    return [of_rank[rank] for rank in sorted(of_rank)]


def read_pairs(folder: Place) -> tuple[Pairs, ...]:
    """Return the comparisons in a run's `steps` folder, in the order of their first run; see `pairs_of`."""
    ranks = [[line for line in read_lines(path) if isinstance(line, PairLine)] for path in rank_files(folder)]
    return pairs_of(ranks)


def pairs_of(ranks: Sequence[Sequence[PairLine]]) -> tuple[Pairs, ...]:
    """Return the comparisons from each rank's pairs; a pair that one rank lacks is dropped on all."""
    if not ranks:
        return ()
    by_key = [{(line.a, line.b, line.pair): line for line in lines} for lines in ranks]
    complete = [key for key in by_key[0] if all(key in other for other in by_key[1:])]
    comparisons = dict.fromkeys((a, b) for a, b, _ in complete)
    return tuple(_collect(by_key, sorted(key for key in complete if key[:2] == names)) for names in comparisons)


def _collect(ranks: Sequence[Mapping[tuple[str, str, int], PairLine]], keys: Sequence[tuple[str, str, int]]) -> Pairs:
    a, b, _ = keys[0]

    def by_rank(column: str) -> NDArray[np.int64]:
        return np.array([[getattr(lines[key], column) for key in keys] for lines in ranks], np.int64)

    has_cpu = bool(by_rank("first_cpu_ns").all())
    return Pairs(
        a=a,
        b=b,
        b_second=np.array([ranks[0][key].b_second for key in keys], np.bool_),
        first_ns=by_rank("first_ns"),
        second_ns=by_rank("second_ns"),
        num_looks=ranks[0][keys[0]].num_looks,
        first_cpu_ns=by_rank("first_cpu_ns") if has_cpu else None,
        second_cpu_ns=by_rank("second_cpu_ns") if has_cpu else None,
        events=_pauses([[lines[key] for key in keys] for lines in ranks]),
    )


def _pauses(ranks: Sequence[Sequence[PairLine]]) -> PairedEvents | None:
    """Return the garbage collections of pairs; None where there were none, and of older recordings."""
    halves = [[half or _NONE for line in lines for half in (line.first_pauses, line.second_pauses)] for lines in ranks]
    kinds = sorted({kind for lines in halves for half in lines for kind in half.kinds})
    if not kinds:
        return None
    shape = len(ranks), len(ranks[0]), 2
    columns = [
        np.array([[[half.kinds.get(kind, (0, 0, 0))[field] for kind in kinds] for half in lines] for lines in halves])
        for field in range(3)
    ]
    num, ns, counted_ns = (column.astype(np.int64).reshape(*shape, len(kinds)) for column in columns)
    return PairedEvents(
        kinds=tuple(EventKind(pause_name(kind), is_shared=" " not in kind) for kind in kinds),
        num=num,
        ns=ns,
        counted_ns=counted_ns,
        num_steps=np.array([[half.num_steps for half in lines] for lines in halves], np.int64).reshape(shape),
        brought=np.array([[half.allocated for half in lines] for lines in halves], np.int64).reshape(shape),
    )


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
        pauses=max(map(_pauses_of_steps, lines), key=lambda pauses: sum(each.ns for each in pauses)),
    )


def _pauses_of_steps(lines: Sequence[StepLine]) -> tuple[Pauses, ...]:
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
