"""Unprofiled samples on disk: one JSON line per step and per pair. Written by ranks, read without torch.

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
from traceq.locations import Most, Place, open_binary
from traceq.model import EventKind, PairedEvents, Pairs

_EXACT = 1 << 53
Number = Annotated[int, msgspec.Meta(ge=-_EXACT, le=_EXACT)]
"""Integer that JSON holds exactly: 104 days in ns, 8 PiB."""
Count = Annotated[int, msgspec.Meta(ge=0, le=_EXACT)]


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
