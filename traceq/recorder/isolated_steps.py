"""Steps of an arm that has a process to itself: timed unprofiled, then, in one of its processes, traced."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from traceq.model import Arm, Manifest
from traceq.recorder.failures.run_status import named_deletion
from traceq.recorder.rank.cpu_peaks import cpu_peak_facts
from traceq.recorder.rank.environment_facts import environment_facts, wrapper_facts
from traceq.recorder.rank.loader_workers import worker_line_facts
from traceq.recorder.rank.rank_state import Rank
from traceq.recorder.spec.plan import Plan
from traceq.recorder.timing.clocks import CoreClocks, clock_facts, core_facts, read_clocks
from traceq.recorder.timing.stopwatch import Stopwatch, reset_peak_memory
from traceq.recorder.timing.timed_steps import Journal, regular_on_all_ranks, step_line
from traceq.recorder.tracing.traced_steps import num_traced_steps, traced_steps
from traceq.runs.step_log import SETTLING, WARM_UP, ClocksLine, CoresLine, Line, read_processes

_STEPS_PER_BLOCK = 16


def isolated_steps(rank: Rank) -> Generator[str, None, None]:
    """Yield the plan's only arm for each step to run; the results are on disk when the iterator ends."""
    return rank.account.around(named_deletion(rank.plan.folder, _isolated_steps(rank)), rank.phases)


def _isolated_steps(rank: Rank) -> Generator[str, None, None]:
    arm = rank.plan.arms[0].arm
    rank.progress.plan_steps(num_isolated_steps(rank.plan))
    rank.control.set_arm(arm.name)
    if rank.plan.process == 0:  # the others say the same
        rank.warn_of_blocking()
    clocks = yield from _time_steps(rank, arm.name)
    device_facts = {key: value for key, value in clock_facts(rank.world.gather(clocks)).items() if value}
    rank.facts.update(wrapper_facts(rank.facts))
    rank.note_wall_time()
    manifest = _publish(rank, arm, device_facts)
    if rank.plan.trace_steps:
        rank.workers.sample()
        yield from traced_steps(rank, manifest, processes=read_processes(rank.plan.folder.steps, manifest))
        rank.facts.update(worker_line_facts(rank.world.gather(rank.workers.lines())))
        _publish(rank, arm, device_facts)


def num_isolated_steps(plan: Plan) -> int:
    """Return the number of steps that `isolated_steps` yields."""
    settling = sum(plan.steps_per_half for _ in _blocks(plan))
    return (plan.warmup_steps + settling + plan.steps if plan.steps else 0) + num_traced_steps(plan)


def _blocks(plan: Plan) -> Iterator[range]:
    """Yield the numbers of the measured steps in blocks, between which the samples are written."""
    return (range(plan.steps)[first : first + _STEPS_PER_BLOCK] for first in range(0, plan.steps, _STEPS_PER_BLOCK))


def _time_steps(rank: Rank, arm: str) -> Generator[str, None, list[ClocksLine]]:
    """Run the warm-up, then blocks of steps, of each of which the first ones settle and do not count."""
    clocks: list[ClocksLine] = []
    cores: list[CoresLine] = []
    settling = [SETTLING] * rank.plan.steps_per_half
    stopwatch = Stopwatch(rank.world.device, rank.phases)
    rank.account.collector = stopwatch.collector
    with Journal(rank.plan.folder.samples(rank.world.rank)) as journal, stopwatch:
        if rank.plan.steps:
            journal.write((yield from _run(rank, stopwatch, arm, [WARM_UP] * rank.plan.warmup_steps)))
            reset_peak_memory(rank.world.device)
        for block in _blocks(rank.plan):
            rank.world.barrier()
            before = list(read_clocks(rank.world.device))
            lines = yield from _run(rank, stopwatch, arm, [*settling, *block])
            journal.write([*before, *lines])
            clocks += before
            cores += [line for line in lines if isinstance(line, CoresLine)]
    rank.facts.update(core_facts(rank.world.gather(cores), [peer.host for peer in rank.world.peers]))
    return clocks


def _run(rank: Rank, stopwatch: Stopwatch, arm: str, numbers: Sequence[int]) -> Generator[str, None, list[Line]]:
    """Run steps with these numbers and return their lines; those that were irregular on any rank do not count."""
    regular: list[bool] = []
    cores = CoreClocks(rank.workers.pids)
    cores.start()
    stopwatch.mark()
    for draw, number in enumerate(numbers):
        rank.reseed(number if number >= 0 else draw)
        yield arm
        stopwatch.mark()
        rank.progress.count_step()
        regular.append(rank.control.is_regular())
    use = cores.lines(len(numbers))
    (on_all_ranks,) = regular_on_all_ranks(rank, [regular])
    counted = [number if is_regular else SETTLING for number, is_regular in zip(numbers, on_all_ranks, strict=True)]
    lines = zip(counted, stopwatch.take(), strict=True)
    return [*use, *(step_line(arm, time, pair=number, process=rank.plan.process) for number, time in lines)]


def _publish(rank: Rank, arm: Arm, device_facts: dict[str, str | int | float]) -> Manifest:
    """Return the run's manifest, updated with this process's facts about its arm, on every rank; rank 0 writes it.

    No other process writes it meanwhile: one launcher starts all ranks, on one machine, one process of the run at a
    time.
    """
    folder = rank.plan.folder
    if rank.world.device.type == "cpu":
        rank.facts.update(cpu_peak_facts(rank.facts))
    if rank.world.rank == 0:
        before = folder.read_manifest()
        arms = tuple(replace(each, facts=rank.facts) if each.name == arm.name else each for each in before.arms)
        facts = {**before.environment, **environment_facts(rank.world), **device_facts, "world_size": before.num_ranks}
        hosts = (rank.world.peers[0].host,) * before.num_ranks
        folder.write_manifest(replace(before, arms=arms, phases=rank.phases.names, environment=facts, hosts=hosts))
    rank.world.barrier()
    return folder.read_manifest()
