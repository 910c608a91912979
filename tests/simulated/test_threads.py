"""Causes where threads launch side by side: each step the main thread starts them, waits for all, and synchronizes.

The machine is simulated instruction by instruction: threads run on their own, work of one stream in order of launch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import pytest
from builder import Event, build, call, kernel, launch, memcpy, op, step

import traceq
from traceq.causes.replay import replay_of
from traceq.compare.explain import explain
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.timeline.active_thread import hand_overs, paired_chains, thread_chains
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind, blocking_calls
from traceq.model import Run

MAIN, FIRST_WORKER = 1, 100
WAKE_US, LATENCY_US, GAP_US, LAUNCH_AT = 25, 4, 1, 0.4


@dataclass(frozen=True)
class Instruction:
    """An op of `host_us` that launches a kernel of `kernel_us`; `reads` its result back afterwards."""

    name: str
    host_us: float
    kernel_us: float
    reads: bool = False


@dataclass(frozen=True)
class Program:
    """What the main thread and its workers do each step; `own_streams`: each worker launches on a stream of its own."""

    before: tuple[Instruction, ...]
    workers: tuple[tuple[Instruction, ...], ...]
    own_streams: bool


def a_program(seed: int, *, own_streams: bool, host_us: float = 20, kernel_us: float = 8) -> Program:
    """Four workers of different length, the third of which is the longest."""

    def worker(number: int, length: int) -> tuple[Instruction, ...]:
        return tuple(
            Instruction(f"w{number}_{n % 9}", host_us + (7 * n + 3 * number + seed) % 5, kernel_us + (n + seed) % 3)
            for n in range(length)
        )

    before = tuple(Instruction(f"prepare_{n}", 30, 10) for n in range(20))
    return Program(before, tuple(worker(n, length) for n, length in enumerate((40, 50, 90, 60))), own_streams)


class Machine:
    """Runs programs, and keeps the rows that a profiler would record."""

    def __init__(self) -> None:
        self.rows: list[Event] = []
        self.free: dict[int, float] = {}
        self.number = 0

    def run(self, instruction: Instruction, time: float, thread: int, stream: int) -> float:
        """Run an instruction from `time` on; return when the host is done with it."""
        self.number += 1
        launched, end = time + LAUNCH_AT * instruction.host_us, time + instruction.host_us
        start = max(launched + LATENCY_US, self.free.get(stream, 0) + GAP_US)
        self.free[stream] = start + instruction.kernel_us
        self.rows += [
            op(f"aten::{instruction.name}", time, instruction.host_us, tid=thread),
            launch(launched, 3, self.number, tid=thread),
            kernel(f"{instruction.name}_kernel", start, instruction.kernel_us, self.number, stream=stream),
        ]
        return self._read(end, thread, stream) if instruction.reads else end

    def _read(self, time: float, thread: int, stream: int) -> float:
        self.number += 1
        start = max(time + 2 + LATENCY_US, self.free[stream] + GAP_US)
        self.free[stream] = start + 1
        done = start + 1 + 5
        self.rows += [
            op("aten::_local_scalar_dense", time, done + 1 - time, tid=thread),
            call("cudaMemcpyAsync", time + 2, 2, self.number, tid=thread),
            memcpy("DtoH (Device -> Pageable)", start, 1, self.number, stream=stream),
            call("cudaStreamSynchronize", time + 5, done - time - 5, tid=thread),
        ]
        return done + 1

    def step(self, program: Program, begin: float, number: int) -> float:
        """Run a step; return when it ends."""
        time = begin
        for instruction in program.before:
            time = self.run(instruction, time, MAIN, 7)
        ready: list[tuple[float, int, int]] = []
        for worker in range(len(program.workers)):
            heappush(ready, (time + WAKE_US + worker, worker, 0))
        ended = time
        while ready:  # the host time of each thread in turn: work of one stream is launched in order of time
            time, worker, index = heappop(ready)
            if index == len(program.workers[worker]):
                ended = max(ended, time)
                continue
            stream = 20 + worker if program.own_streams else 20
            time = self.run(program.workers[worker][index], time, FIRST_WORKER + worker, stream)
            heappush(ready, (time, worker, index + 1))
        called = ended + WAKE_US
        end = max(called + 3, *(free + 5 for free in self.free.values()))
        self.rows += [
            call("cudaDeviceSynchronize", called, end - called, tid=MAIN),
            step(begin, end + 2 - begin, number),
        ]
        return end + 10


def run_of(program: Program) -> Run:
    machine, time = Machine(), 0.0
    for number in range(3):
        time = machine.step(program, time, number)
    return Run("threads", (build(*machine.rows),))


def edited(program: Program, place: int, **change: float) -> Program:
    """The program with an op of its own in a worker, or at `place` -1 in the main thread, to which a change is made."""
    line = program.before if place < 0 else program.workers[place]
    index = len(line) // 3
    changed = {key: getattr(line[index], key) + value for key, value in change.items()}
    line = (*line[:index], replace(line[index], name="special", **changed), *line[index + 1 :])
    if place < 0:
        return replace(program, before=line)
    return replace(program, workers=(*program.workers[:place], line, *program.workers[place + 1 :]))


def jittered(program: Program, seed: int) -> Program:
    rng = random.Random(seed)

    def of(line: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        return tuple(
            replace(one, host_us=one.host_us * rng.gauss(1, 0.05), kernel_us=one.kernel_us * rng.gauss(1, 0.02))
            for one in line
        )

    return replace(program, before=of(program.before), workers=tuple(map(of, program.workers)))


CHANGES = [
    pytest.param(2, {"host_us": 300}, "aten::special", id="op of the longest worker"),
    pytest.param(0, {"host_us": 300}, "aten::special", id="op that the others hide"),
    pytest.param(0, {"host_us": 3000}, "aten::special", id="op that the others hide in part"),
    pytest.param(2, {"kernel_us": 2500}, "aten::special > special_kernel", id="kernel"),
    pytest.param(2, {"reads": True}, "dtoh aten::_local_scalar_dense", id="sync of the longest worker"),
    pytest.param(1, {"reads": True}, "dtoh aten::_local_scalar_dense", id="sync that the others hide"),
    pytest.param(-1, {"host_us": 500}, "aten::special", id="op before the workers start"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "change", "name"), CHANGES)
def test_a_change_of_one_thread_is_the_cause(place: int, change: dict[str, float], name: str) -> None:
    for seed in range(3):
        program = a_program(seed, own_streams=True)
        diff = traceq.diff(run_of(edited(program, place)), run_of(edited(program, place, **change)))
        assert diff.traced is not None
        delta = diff.traced.delta_ns
        assert sum(cause.delta_ns for cause in diff.causes) == delta
        causes = {cause.name: cause.delta_ns for cause in diff.causes if cause.names_a_change and cause.delta_ns}
        assert abs(causes.pop(name, 0) - delta) <= 0.01 * delta
        assert all(abs(other) <= 0.01 * delta for other in causes.values())


@pytest.mark.slow
@pytest.mark.parametrize(("place", "change", "name"), CHANGES)
def test_on_one_stream_nothing_else_is_blamed(place: int, change: dict[str, float], name: str) -> None:
    """Work that threads launch in another order on either side may leave a rest without a recorded reason."""
    for seed in range(3):
        program = a_program(seed, own_streams=False)
        diff = traceq.diff(run_of(edited(program, place)), run_of(edited(program, place, **change)))
        assert diff.traced is not None
        assert sum(cause.delta_ns for cause in diff.causes) == diff.traced.delta_ns
        others = [c for c in diff.causes if c.names_a_change and c.name != name and c.kind != "residual"]
        assert all(abs(cause.delta_ns) <= 0.01 * abs(diff.traced.delta_ns) for cause in others)


@pytest.mark.parametrize("own_streams", [True, False])
def test_noise_has_no_cause(*, own_streams: bool) -> None:
    program = a_program(1, own_streams=own_streams)
    for seed in range(3):
        diff = traceq.diff(*(run_of(jittered(program, 2 * seed + side)) for side in (0, 1)))
        assert diff.traced is not None
        assert diff.traced.delta_ns
        assert not [c for c in diff.causes if c.names_a_change and abs(c.delta_ns) > 0.001 * diff.traced.a_ns]


@pytest.mark.parametrize("place", [1, 2])
def test_removing_the_sync_of_a_thread_saves_what_the_program_without_it_takes_less(place: int) -> None:
    """Without the wait the host still launches the copy, and reads from memory."""
    for seed in range(3):
        program = a_program(seed, own_streams=True)
        (with_sync,), (without,) = (run_of(edited(program, place, **change)).traces for change in ({"reads": True}, {}))
        replay = replay_of(with_sync)
        call = host_waits(with_sync).call
        is_read = (call >= 0) & (blocking_calls(with_sync).kind[call] == SyncKind.DTOH)
        assert is_read.sum() == 3
        (saving,) = replay.saved_per_step(is_read[None])
        truth = int((replay.step_ns - replay_of(without).step_ns).mean())
        assert (truth > 0) == (place == 2)
        assert truth - 6_000 <= saving.least_ns <= saving.most_ns <= truth


def test_chains_are_the_threads_that_do_not_take_turns() -> None:
    (trace,) = run_of(a_program(0, own_streams=True)).traces
    chains = thread_chains(trace)
    threads = [{trace.events.strings[track % len(trace.events.strings)] for track in chain} for chain in chains]
    assert threads == [{"1", "102"}, {"103"}, {"101"}, {"100"}]
    handed = hand_overs(trace, chains)
    assert set(handed.chain.tolist()) == {1, 2, 3}
    assert set(handed.giver.tolist()) == {0}  # the longest worker is the last one, and the main thread takes its turn


def test_threads_that_take_turns_on_one_side_are_one_line_on_both() -> None:
    """The main thread is still in an op as the other begins, on B only, and resumes late: no hand-over is seen."""

    def side(read_us: float, overlap_us: float) -> list[Event]:
        events, now = list[Event](), 0.0
        for number in range(3):
            begin = now
            events += [op("forward", now, 100 + overlap_us), op("backward", now + 100, 400, tid=2)]
            for name, tid, num in (("f", MAIN, 10), ("b", 2, 40)):
                for _ in range(num):
                    corr = len(events)
                    events += [launch(now + 1, 2, corr, tid=tid), kernel(f"{name}_kernel", now + 5, 4, corr)]
                    now += 10
            if read_us:
                events += [op("aten::item", now, read_us, tid=2), call("cudaStreamSynchronize", now, read_us, tid=2)]
                now += read_us
            now += 700
            events.append(step(begin, now - begin, number))
        return events

    a, b = build(*side(0, 0)), build(*side(300, 45))
    assert [len(chains) for chains in (thread_chains(a), thread_chains(b))] == [1, 2]
    assert [len(chains) for chains in paired_chains(a, b)] == [1, 1]
    assert [len(chains) for chains in paired_chains(b, a)] == [1, 1]
    traced, _, causes = explain(a, b)
    assert traced.delta_ns == 200_000, "the last step ends with its last kernel"
    assert (causes[0].kind, causes[0].delta_ns) == ("sync", pytest.approx(200_000, rel=0.02))
