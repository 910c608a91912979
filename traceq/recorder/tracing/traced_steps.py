"""Profiled windows of the arms on one rank: a step with stacks each, then windows in turns, with its source lines."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from traceq.claims.limits import LARGE
from traceq.errors import RecordingFailed
from traceq.model import Manifest, Pairs, Processes, memory_growth
from traceq.recorder.failures.hang_diagnosis import Entry, flight_entries, write_flight
from traceq.recorder.rank.rank_state import Rank
from traceq.recorder.spec.plan import Plan
from traceq.recorder.tracing.line_marks import PREFIX, TraceRow, kept_facts, read_rows, rows_of_last_step, source_lines
from traceq.recorder.tracing.profiler_window import (
    WARMUP_STEPS,
    Window,
    check_no_profiler,
    profiled_steps,
    read_document,
)
from traceq.runs.embedded_recording import KEY, Embedded, encode
from traceq.runs.run_folder import atomic_write
from traceq.units import Unit, format_value

_MAX_ATTEMPTS = 6
_OF_DEVICES = {"kernel", "gpu_memcpy", "gpu_memset"}
"""Kineto's categories of what ran on a device."""


@dataclass(slots=True)
class _Traced:
    """What the windows of one arm leave: their files, and the entries of the flight recorder made meanwhile."""

    embedded: str
    windows: list[Path] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


@dataclass(slots=True)
class _Attempt:
    """A window that is being recorded; it is recorded again if one of its steps was irregular, unless it `is_last`."""

    is_last: bool
    is_regular: bool = True

    def is_wanted(self) -> bool:
        """Return whether the trace may be used."""
        return self.is_regular or self.is_last


def traced_steps(
    rank: Rank, manifest: Manifest, pairs: tuple[Pairs, ...] = (), processes: tuple[Processes, ...] = ()
) -> Iterator[str]:
    """Yield the arm of each step to run; the traces, with embedded samples, are on disk when the iterator ends.

    After a step with stacks of each arm, the arms take turns (A B A B, `window_sizes`), so that what drifts meanwhile
    is not taken for their difference. The windows of an arm become one trace.
    """
    folder, number, complete = rank.plan.folder, rank.world.rank, replace(manifest, status="complete")
    traced: dict[str, _Traced] = {}
    for arm in (planned.arm.name for planned in rank.plan.arms):
        stacks = folder.stacks(arm, number)
        rank.control.set_arm(arm)
        asks_memory = not traced and memory_growth(rank.facts) > LARGE
        yield from _window(rank, arm, Window(stacks, 1, stacks=True, marks=True, memory=asks_memory))
        rank.world.barrier()  # exporting stalls ranks unequally
        recorded = read_rows(stacks)
        rows = rows_of_last_step(recorded)
        _report_size(rank, arm, rows)
        if not traced:
            _report_unseen_device(rank, rows)
            rank.facts.update(kept_facts(recorded, rank.world.device.type) if asks_memory else {})
        lines = source_lines(rows, rank.phases.names)
        traced[arm] = _Traced(encode(Embedded(complete, arm, pairs, lines, processes)))
    sizes = window_sizes(rank.plan)
    for turn, (num_steps, num_between) in enumerate(zip(sizes, _steps_between_turns(rank.plan), strict=True)):
        between = list(traced)[turn % len(traced)]
        if num_between:
            rank.control.set_arm(between)
        yield from _untraced(rank, between, num_between)
        for arm, of_arm in traced.items():
            if len(sizes) > 1:
                window = Window(folder.window(arm, number, turn), num_steps, is_part=True)
            else:
                window = Window(folder.trace(arm, number), num_steps, of_arm.embedded)
            rank.control.set_arm(arm)
            since_ns = yield from _window(rank, arm, window)
            of_arm.windows.append(window.path)
            of_arm.entries += flight_entries(since_ns)
            rank.world.barrier()
    for arm, of_arm in traced.items():
        if len(sizes) > 1:
            write_joined(of_arm.windows, folder.trace(arm, number), of_arm.embedded)
        _note_collectives(rank, arm, write_flight(folder.flight(arm, number), of_arm.entries))
    rank.world.barrier()


def num_traced_steps(plan: Plan) -> int:
    """Return the number of steps in the windows of all arms."""
    sizes, num_between = [1, *window_sizes(plan)], sum(_steps_between_turns(plan))
    return (len(sizes) * WARMUP_STEPS + sum(sizes)) * len(plan.arms) + num_between if plan.trace_steps else 0


def window_sizes(plan: Plan) -> list[int]:
    """Return the profiled steps of each window of an arm, of which one step is whole where arms take turns.

    On CUDA the first step of a window is not: the device lags behind the host, so that it holds work launched before
    it, or begins with a device that has nothing to do. A single arm has all steps in one window.
    """
    if len(plan.arms) == 1:
        return [plan.trace_steps]
    return [1 if plan.device == "cpu" else 2] * plan.trace_steps


def _steps_between_turns(plan: Plan) -> list[int]:
    """Return the steps before each turn of the arms, which make turns odd, and of two lengths.

    What a job does in every second or fourth step would else be in all traced steps of one arm and in none of another.
    """
    sizes = window_sizes(plan)
    if len(sizes) < 2:
        return [0] * len(sizes)
    num_in_turn = len(plan.arms) * (WARMUP_STEPS + sizes[0])
    return [0, *(1 - num_in_turn % 2 + (0 if turn % 2 else 2) for turn in range(1, len(sizes)))]


def _untraced(rank: Rank, arm: str, num_steps: int) -> Iterator[str]:
    for _ in range(num_steps):
        yield arm
        rank.progress.count_step()
        rank.control.is_regular()


def _window(rank: Rank, arm: str, window: Window) -> Generator[str, None, int]:
    """Run the window's steps; return when its first recorded step began, ns since the epoch.

    A window with an irregular step on any rank is recorded again, a few times at most, and one more step later each
    time: a window may be as long as the period of the loop.
    """
    since_ns = 0
    for number in range(_MAX_ATTEMPTS):
        yield from _untraced(rank, arm, number)
        check_no_profiler()
        rank.world.barrier()  # no rank begins unless all do
        attempt = _Attempt(is_last=number == _MAX_ATTEMPTS - 1)
        for index in profiled_steps(window, rank.world.device, rank.phases, attempt.is_wanted):
            if index == WARMUP_STEPS:
                since_ns, attempt.is_regular = time.time_ns(), True
            yield arm
            rank.progress.count_step()
            attempt.is_regular = rank.control.is_regular() and attempt.is_regular
        if rank.control.was_regular is None or all(rank.world.gather(attempt.is_regular)):
            return since_ns
    rank.note(arm, "irregular_window", "a profiled step did more than the others, such as an evaluation")
    return since_ns


def _report_size(rank: Rank, arm: str, rows: Sequence[TraceRow]) -> None:
    """Print the forecast of the trace's size, for a recipe's first arm and for every large trace."""
    num_steps = sum(window_sizes(rank.plan))
    num_bytes = forecast_bytes(rows, num_steps)
    if num_bytes > LARGE_BYTES or (rank.plan.recipe and arm == rank.plan.arms[0].arm.name):
        rank.say(forecast_text(num_bytes, num_steps))


def _report_unseen_device(rank: Rank, rows: Sequence[TraceRow]) -> None:
    """Print that traces will show the host alone, if the profiler saw nothing of the device that steps are timed on."""
    if rank.world.device.type == "cuda" and not any(row.cat in _OF_DEVICES for row in rows):
        rank.say(
            "traceq: note: the profiler saw no work of the GPU, so traces show the host alone: another tool holds "
            "CUPTI (nsys, ncu, DCGM), this torch lacks it, or the steps use no GPU; they are timed all the same"
        )


def _note_collectives(rank: Rank, arm: str, counts: Counter[str]) -> None:
    """Store the window's collectives in the facts; RecordingFailed for DDP without an all_reduce."""
    if not counts:
        return
    if rank.facts.get("wrapper") == "DistributedDataParallel" and not counts["all_reduce"]:
        raise RecordingFailed(
            f"arm {arm}: DDP on {rank.world.size} ranks, but no all_reduce in the profiled window: {dict(counts)}"
        )
    rank.note(arm, "collectives", ", ".join(f"{name} {num}" for name, num in sorted(counts.items())))


EVENT_BYTES = 450  # with shapes and arrows; 315 to 735 on real traces of many devices
COMPRESSION = 16  # typical ratio of gzip
LARGE_BYTES = 500_000_000  # of which writing and reading take minutes


def forecast_bytes(rows: Sequence[TraceRow], num_steps: int) -> int:
    """Return the uncompressed size of a trace of `num_steps` steps, from the events of a single traced step.

    Its Python functions and line marks do not count: the window does not record them.
    """
    num_events = sum(row.ph == "X" and row.cat != "python_function" and not row.name.startswith(PREFIX) for row in rows)
    return num_events * EVENT_BYTES * num_steps


def forecast_text(num_bytes: int, num_steps: int) -> str:
    """Return `a trace of 3 steps takes about 13.7 MiB per rank, 876 KiB compressed`, with a remedy if it is large."""
    steps = f"{num_steps:,} step{'s' if num_steps > 1 else ''}"
    sizes = [format_value(size, Unit.BYTES) for size in (num_bytes, num_bytes // COMPRESSION)]
    text = f"a trace of {steps} takes about {sizes[0]} per rank, {sizes[1]} compressed"
    if num_bytes <= LARGE_BYTES:
        return text
    fewer = max(1, num_steps * LARGE_BYTES // num_bytes)
    remedy = f"; --trace-steps {fewer} usually suffices" if fewer < num_steps else ""
    return f"{text}; writing and reading it takes minutes and much memory{remedy}"


_IDS = ("External id", "correlation", "wait_on_cuda_event_record_corr_id", "Ev Idx", "Record function id")
_STEP = re.compile(r"^ProfilerStep#(\d+)$")

Event = dict[str, Any]


def write_joined(windows: Sequence[Path], path: Path, embedded: str) -> None:
    """Write the windows, files of plain JSON, as one compressed trace that carries `embedded`, and remove them.

    They are read one after the other. Raises RecordingFailed if the profiler wrote invalid JSON.
    """
    documents = map(read_document, windows, windows)
    first = next(documents)
    described = {key: value for key, value in first.items() if key != "traceEvents"}
    events = joined_events(chain([first], documents))
    del first
    with atomic_write(path) as part, gzip.open(part, "wt", 5) as file:
        file.write(f'{json.dumps({**described, KEY: embedded}, indent=1)[:-2]},\n "traceEvents": [')
        for index, event in enumerate(events):
            file.write(f"{',' if index else ''}\n{json.dumps(event)}")
        file.write("\n]}\n")
    for window in windows:
        window.unlink()


def joined_events(windows: Iterable[dict[str, Any]]) -> Iterator[Event]:
    """Yield the events of all windows of a process, each the JSON of one profiler session.

    A session counts its steps and ids from the start again. Here ids stay unique, and steps are numbered on: numbers
    that are left out, of warm-up steps at least, mark where a window begins. Rows that describe processes and threads
    come only once. Raises RecordingFailed if the windows do not share a clock.
    """
    described: set[str] = set()
    base_ns, first_id, first_step = None, 0, 0
    for index, window in enumerate(windows):
        base_ns = base_ns if index else window.get("baseTimeNanoseconds")
        if window.get("baseTimeNanoseconds") != base_ns:
            raise RecordingFailed(
                f"the profiler's windows have different base times: {base_ns}, {window.get('baseTimeNanoseconds')}"
            )
        last_id, last_step = first_id - 1, first_step - 1
        for event in _shifted(window["traceEvents"], first_id, first_step):
            last_id, last_step = max(last_id, *_ids(event)), max(last_step, _step(event))
            if event.get("ph") == "M":
                text = json.dumps(event, sort_keys=True)
                if text in described:
                    continue
                described.add(text)
            yield event
        first_id, first_step = last_id + 1, last_step + 1


def _shifted(events: Sequence[Event], first_id: int, first_step: int) -> Iterator[Event]:
    """Yield the events with their ids and step numbers raised by these; 0 and less is no id, but none."""
    for event in events:
        args = event.get("args", {})
        changes = {key: args[key] + first_id for key in _IDS if isinstance(args.get(key), int) and args[key] > 0}
        shifted = {**event, "args": {**args, **changes}} if changes else dict(event)
        if isinstance(event.get("id"), int) and event["id"] > 0:
            shifted["id"] = event["id"] + first_id
        if (number := _step(event)) >= 0:
            shifted["name"] = f"ProfilerStep#{number + first_step}"
        yield shifted


def _ids(event: Event) -> Iterator[int]:
    """Yield the ids of an event, and 0."""
    args = event.get("args", {})
    return (number for number in (0, event.get("id"), *map(args.get, _IDS)) if isinstance(number, int))


def _step(event: Event) -> int:
    """Return the number of the step that an event marks, -1 for others."""
    match = _STEP.match(str(event.get("name", "")))
    return int(match[1]) if match else -1
