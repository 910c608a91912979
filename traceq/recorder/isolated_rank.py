"""One process of an arm that runs apart: its steps timed unprofiled, then, in one of its processes, traced."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from traceq.model import Arm, Manifest
from traceq.recorder.rank.environment import environment_facts
from traceq.recorder.rank.rank import Rank
from traceq.recorder.rank.wrappers import wrapper_facts
from traceq.recorder.spec.plan import Plan
from traceq.recorder.timing.gpu_clocks import clock_facts, read_clocks
from traceq.recorder.timing.journal import Journal
from traceq.recorder.timing.peak_memory import reset_peak_memory
from traceq.recorder.timing.stopwatch import Stopwatch
from traceq.recorder.timing.timed_steps import collector_off, step_line
from traceq.recorder.tracing.traced_steps import num_traced_steps, traced_steps
from traceq.runs.processes import read_processes
from traceq.runs.step_log import ClocksLine, Line
from traceq.runs.timings import SETTLING, WARM_UP

__all__ = ["alone_steps", "num_alone_steps"]

STEPS_PER_GROUP = 16


def alone_steps(rank: Rank) -> Iterator[str]:
    """Yields the plan's one arm for each step to run; what they showed is on disk when it ends."""
    arm = rank.plan.arms[0].arm
    rank.pulse.expect(num_alone_steps(rank.plan))
    clocks = yield from _timed(rank, arm.name)
    seen = {key: value for key, value in clock_facts(rank.world.gather(clocks)).items() if value}
    rank.facts.update(wrapper_facts(rank.facts))
    known = _publish(rank, arm, seen)
    if rank.plan.trace_steps:
        yield from traced_steps(rank, arm.name, known, processes=read_processes(rank.plan.folder.steps, known))
        _publish(rank, arm, seen)


def num_alone_steps(plan: Plan) -> int:
    """How many steps `alone_steps` will ask for."""
    settling = sum(plan.steps_per_half for _ in _groups(plan))
    return (plan.warmup_steps + settling + plan.steps if plan.steps else 0) + num_traced_steps(plan)


def _groups(plan: Plan) -> Iterator[range]:
    """Steps that count, in the groups between which rubbish is collected."""
    return (range(plan.steps)[first : first + STEPS_PER_GROUP] for first in range(0, plan.steps, STEPS_PER_GROUP))


def _timed(rank: Rank, arm: str) -> Generator[str, None, list[ClocksLine]]:
    """Warm-up, then groups of steps; the first ones of a group settle after the collection and do not count."""
    clocks: list[ClocksLine] = []
    settling = [SETTLING] * rank.plan.steps_per_half
    stopwatch = Stopwatch(rank.world.device, rank.phases)
    with Journal(rank.plan.folder.samples(rank.world.rank)) as journal, collector_off(), stopwatch:
        if rank.plan.steps:
            journal.write((yield from _run(rank, stopwatch, arm, [WARM_UP] * rank.plan.warmup_steps)))
            reset_peak_memory(rank.world.device)
        for group in _groups(rank.plan):
            gc.collect()
            rank.world.barrier()
            before = list(read_clocks(rank.world.device))
            journal.write([*before, *(yield from _run(rank, stopwatch, arm, [*settling, *group]))])
            clocks += before
    return clocks


def _run(rank: Rank, stopwatch: Stopwatch, arm: str, numbers: Sequence[int]) -> Generator[str, None, list[Line]]:
    """Lines of steps of these numbers."""
    stopwatch.mark()
    for draw, number in enumerate(numbers):
        rank.reseed(number if number >= 0 else draw)
        yield arm
        stopwatch.mark()
        rank.pulse.step_ended()
    times = zip(numbers, stopwatch.take(), strict=True)
    return [step_line(arm, time, pair=number, process=rank.plan.process) for number, time in times]


def _publish(rank: Rank, arm: Arm, seen: dict[str, str | int | float]) -> Manifest:
    """The run's manifest with what this process knows of its arm, on every rank; rank 0 writes it.

    Ranks are on one machine, as they were started by one launcher, and no other process of the run is there.
    """
    folder = rank.plan.folder
    if rank.world.rank == 0:
        known = folder.read_manifest()
        arms = tuple(replace(each, facts=rank.facts) if each.name == arm.name else each for each in known.arms)
        environment = {**known.environment, **environment_facts(rank.world), **seen, "world_size": known.num_ranks}
        hosts = (rank.world.peers[0].host,) * known.num_ranks
        folder.write_manifest(replace(known, arms=arms, phases=rank.phases.names, environment=environment, hosts=hosts))
    rank.world.barrier()
    return folder.read_manifest()
