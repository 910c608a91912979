"""Profiled windows of the arms on one rank: a step with stacks each, then windows in turns, with its source lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from traceq.errors import RecordingFailed
from traceq.model import Manifest, Pairs, Processes
from traceq.recorder.process.flight_recorder import Entry, flight_entries, write_flight
from traceq.recorder.rank.rank_state import Rank
from traceq.recorder.spec.plan import Plan
from traceq.recorder.tracing.joined_windows import write_joined
from traceq.recorder.tracing.line_table import TraceRow, read_rows, source_lines
from traceq.recorder.tracing.profiler_window import WARMUP_STEPS, Window, profiled_steps
from traceq.recorder.tracing.trace_size import forecast_bytes, forecast_text, is_large
from traceq.runs.embedded_recording import Embedded, encode

__all__ = ["num_traced_steps", "traced_steps", "window_sizes"]

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
        yield from _window(rank, arm, Window(stacks, 1, stacks=True, marks=True))
        rank.world.barrier()  # exporting stalls ranks unequally
        rows = read_rows(stacks)
        _report_size(rank, arm, rows)
        if not traced:
            _report_unseen_device(rank, rows)
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
        attempt = _Attempt(is_last=number == _MAX_ATTEMPTS - 1)
        for index in profiled_steps(window, rank.world.device, rank.phases, attempt.is_wanted):
            if index == WARMUP_STEPS:
                since_ns, attempt.is_regular = time.time_ns(), True
            yield arm
            rank.progress.count_step()
            attempt.is_regular = rank.control.is_regular() and attempt.is_regular
        rank.phases.take()
        if rank.control.was_regular is None or all(rank.world.gather(attempt.is_regular)):
            return since_ns
    rank.note(arm, "irregular_window", "a profiled step did more than the others, such as an evaluation")
    return since_ns


def _report_size(rank: Rank, arm: str, rows: Sequence[TraceRow]) -> None:
    """Print the forecast of the trace's size, for a recipe's first arm and for every large trace."""
    num_steps = sum(window_sizes(rank.plan))
    num_bytes = forecast_bytes(rows, num_steps)
    if is_large(num_bytes) or (rank.plan.recipe and arm == rank.plan.arms[0].arm.name):
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
