"""Unprofiled timing: groups of pairs, arms interleaved in one process, the collector off while a group runs."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from traceq.recorder.rank.rank import Rank
from traceq.recorder.spec.plan import Plan
from traceq.recorder.spec.schedule import STEPS_ALONE, Group, comparisons, pairs_alone, pairs_for, schedule
from traceq.recorder.timing.gpu_clocks import clock_facts, read_clocks
from traceq.recorder.timing.journal import Journal
from traceq.recorder.timing.peak_memory import reset_peak_memory
from traceq.recorder.timing.sequential import groups_until_decided
from traceq.recorder.timing.stopwatch import StepTime, Stopwatch, counted_cpu_ns, counted_ns
from traceq.runs.step_log import ClocksLine, Line, PairLine, StepLine
from traceq.runs.timings import SETTLING, WARM_UP

__all__ = ["collector_off", "num_timed_steps", "step_line", "timed_steps"]


def timed_steps(rank: Rank) -> Generator[str, None, list[PairLine]]:
    """Yields the arm of each step to run, and returns the pairs: warm-up, then every group of every comparison.

    A step ends when the next arm is asked for. Each group is on disk before the next one begins.
    """
    found: list[PairLine] = []
    clocks: list[ClocksLine] = []
    stopwatch = Stopwatch(rank.world.device, rank.phases)
    with Journal(rank.plan.folder.samples(rank.world.rank)) as journal, collector_off(), stopwatch:
        warm_up = yield from _warm_up(rank, stopwatch)
        journal.write(warm_up)
        reset_peak_memory(rank.world.device)
        for group in groups_until_decided(rank, warm_up, found) if rank.plan.max_minutes else _groups(rank.plan):
            gc.collect()
            rank.world.barrier()
            before = list(read_clocks(rank.world.device))
            lines = [*before, *(yield from _group(rank, stopwatch, group))]
            clocks += before
            journal.write(lines)
            found += [line for line in lines if isinstance(line, PairLine)]
    rank.facts.update(clock_facts(rank.world.gather(clocks)))
    return found


def num_timed_steps(plan: Plan) -> int:
    """How many steps `timed_steps` will ask for where their number is planned."""
    halves = len(_warm_up_order(plan)) + sum(2 + 2 * len(group.b_second) for group in _groups(plan))
    return halves * plan.steps_per_half


def _groups(plan: Plan) -> tuple[Group, ...]:
    compared, per_half = comparisons([planned.arm for planned in plan.arms]), plan.steps_per_half
    if len(compared) == 1:
        return schedule(compared, (pairs_alone(plan.steps, per_half),), plan.seed, STEPS_ALONE // (2 * per_half))
    return schedule(compared, (pairs_for(plan.steps, per_half),), plan.seed)


def _warm_up_order(plan: Plan) -> list[str]:
    """Arms of the warm-up's halves: in pairs, so that both halves of later pairs stay on the same batches."""
    num_pairs = -(-plan.warmup_steps // (2 * plan.steps_per_half))
    timed = [planned.arm.name for planned in plan.arms if planned.arm.timed]
    return [arm for _ in range(num_pairs) for arm in timed for _ in range(2)]


def _warm_up(rank: Rank, stopwatch: Stopwatch) -> Generator[str, None, list[Line]]:
    order = _warm_up_order(rank.plan)
    stopwatch.mark()
    for draw, arm in enumerate(order):
        yield from _half(rank, stopwatch, arm, draw)
    halves = _by_half(rank, stopwatch)
    return [line for arm, half in zip(order, halves, strict=True) for line in _uncounted(arm, half, WARM_UP)]


def _group(rank: Rank, stopwatch: Stopwatch, group: Group) -> Generator[str, None, list[Line]]:
    """Lines of one group. Its first pair of halves settles after the collection and does not count."""
    order = [group.halves(0), *(group.halves(index) for index in range(len(group.b_second)))]
    stopwatch.mark()
    for position, pair in enumerate(order):
        for arm in pair:
            yield from _half(rank, stopwatch, arm, group.first_pair + position)
    halves = _by_half(rank, stopwatch)
    settling = zip(order[0], halves, strict=False)
    lines: list[Line] = [line for arm, half in settling for line in _uncounted(arm, half, SETTLING)]
    for index in range(len(group.b_second)):
        lines += _pair(group, index, halves[2 + 2 * index], halves[3 + 2 * index])
    return lines


def _half(rank: Rank, stopwatch: Stopwatch, arm: str, draw: int) -> Iterator[str]:
    """One half; both halves of a pair draw the same random numbers."""
    if rank.plan.reseeds:
        rank.reseed(draw)
    last = rank.plan.steps_per_half - 1
    for index in range(rank.plan.steps_per_half):
        yield arm
        stopwatch.mark(half_ended=index == last)
        rank.pulse.step_ended()


def _pair(group: Group, index: int, first: Sequence[StepTime], second: Sequence[StepTime]) -> Iterator[Line]:
    pair = group.first_pair + index
    for half, (arm, times) in enumerate(zip(group.halves(index), (first, second), strict=True)):
        for position, time in enumerate(times):
            yield step_line(arm, time, a=group.a, b=group.b, pair=pair, half=half, index=position)
    times_ns = counted_ns(first), counted_ns(second)
    cpu_ns = counted_cpu_ns(first), counted_cpu_ns(second)
    yield PairLine(group.a, group.b, pair, group.b_second[index], *times_ns, group.num_looks, *cpu_ns)


def _uncounted(arm: str, half: Sequence[StepTime], why: int) -> Iterator[StepLine]:
    for index, time in enumerate(half):
        yield step_line(arm, time, pair=why, index=index)


def step_line(
    arm: str,
    time: StepTime,
    *,
    pair: int,
    a: str = "",
    b: str = "",
    half: int = 0,
    index: int = 0,
    process: int = -1,
) -> StepLine:
    """A step as it is written."""
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
        peak_bytes=time.peak.allocated,
        device_phases=time.device_phases,
        reserved_bytes=time.peak.reserved,
        process=process,
    )


def _by_half(rank: Rank, stopwatch: Stopwatch) -> list[Sequence[StepTime]]:
    times, size = stopwatch.take(), rank.plan.steps_per_half
    return [times[first : first + size] for first in range(0, len(times), size)]


@contextmanager
def collector_off() -> Iterator[None]:
    """Python's collector does not run in the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
