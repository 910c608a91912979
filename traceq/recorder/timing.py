"""Unprofiled timing: groups of pairs, arms interleaved in one process, the collector off while a group runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from traceq.recorder.clocks import read_clocks
from traceq.recorder.journal import Journal
from traceq.recorder.plan import PlannedArm
from traceq.recorder.pulse import Pulse
from traceq.recorder.recipe import Step
from traceq.recorder.schedule import Group
from traceq.recorder.stopwatch import StepTime, Stopwatch, counted_ns
from traceq.runs.samples import Line, PairLine, StepLine

__all__ = ["Timing", "time_groups", "warm_up"]

UNCOUNTED = -1


@dataclass(frozen=True, slots=True)
class Timing:
    """What one rank needs to time its arms: `steps` by arm, a stopwatch, and `steps_per_half`."""

    steps: dict[str, Step]
    stopwatch: Stopwatch
    pulse: Pulse
    steps_per_half: int
    seed: int

    def run_half(self, arm: str, draw: int) -> None:
        """One half. Both halves of a pair start from the same random numbers."""
        torch.manual_seed(self.seed + draw)
        for index in range(self.steps_per_half):
            self.steps[arm](arm)
            self.stopwatch.mark(half_ended=index == self.steps_per_half - 1)
            self.pulse.step_ended()


def warm_up(timing: Timing, arms: Sequence[PlannedArm], num_steps: int, journal: Journal) -> None:
    """Run each arm `num_steps` times, in whole pairs of halves, so that both halves stay on the same batches."""
    names = [planned.arm.name for planned in arms]
    halves = -(-num_steps // timing.steps_per_half)
    order = [name for _ in range(-(-halves // 2)) for name in names for _ in range(2)]
    timing.stopwatch.mark()
    for draw, arm in enumerate(order):
        timing.run_half(arm, draw)
    halves_ns = _by_half(timing.stopwatch.take(), timing.steps_per_half)
    journal.write(line for arm, half in zip(order, halves_ns, strict=True) for line in _uncounted(arm, half))


def time_groups(timing: Timing, groups: Sequence[Group], journal: Journal) -> list[PairLine]:
    """Every pair of every group, in order; each group is on disk before the next begins."""
    found = []
    with _collector_off():
        for group in groups:
            gc.collect()
            dist.barrier()
            lines = [*read_clocks(timing.stopwatch.device), *_time_group(timing, group)]
            journal.write(lines)
            found += [line for line in lines if isinstance(line, PairLine)]
    return found


def _time_group(timing: Timing, group: Group) -> Iterator[Line]:
    """Lines of one group. Its first pair of halves settles after the collection and does not count."""
    settling = group.halves(0)
    timing.stopwatch.mark()
    for arm in settling:
        timing.run_half(arm, group.first_pair)
    for index in range(len(group.b_second)):
        for arm in group.halves(index):
            timing.run_half(arm, group.first_pair + index)
    halves = _by_half(timing.stopwatch.take(), timing.steps_per_half)
    for arm, half in zip(settling, halves, strict=False):
        yield from _uncounted(arm, half)
    for index, (first, second) in enumerate(zip(halves[2::2], halves[3::2], strict=True)):
        yield from _pair(group, index, first, second)


def _pair(group: Group, index: int, first: Sequence[StepTime], second: Sequence[StepTime]) -> Iterator[Line]:
    pair = group.first_pair + index
    for half, (arm, times) in enumerate(zip(group.halves(index), (first, second), strict=True)):
        for position, time in enumerate(times):
            yield step_line(arm, time, a=group.a, b=group.b, pair=pair, half=half, index=position)
    yield PairLine(group.a, group.b, pair, group.b_second[index], counted_ns(first), counted_ns(second))


def _uncounted(arm: str, half: Sequence[StepTime]) -> Iterator[StepLine]:
    for index, time in enumerate(half):
        yield step_line(arm, time, a="", b="", pair=UNCOUNTED, half=0, index=index)


def step_line(arm: str, time: StepTime, *, a: str, b: str, pair: int, half: int, index: int) -> StepLine:
    """One step as it is written."""
    return StepLine(
        arm=arm,
        a=a,
        b=b,
        pair=pair,
        half=half,
        index=index,
        phases=time.phases,
        wall_ns=time.wall_ns,
        cpu_ns=time.cpu_ns,
        device_ns=time.device_ns,
        peak_bytes=time.peak_bytes,
    )


def _by_half(times: Sequence[StepTime], size: int) -> list[Sequence[StepTime]]:
    return [times[first : first + size] for first in range(0, len(times), size)]


@contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
