"""Replay against machines that are simulated: a program is run twice, with its syncs and without some of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from builder import Event, build, call, kernel, launch, memcpy, step
from simulator import a_job, run_of, simulate

from traceq.causes.replay import replay_of
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls

LAUNCH, LATENCY, COPY, RETURN, STEPS = 2, 5, 2, 4, 3
Instruction = tuple[str, int, int]
"""(what, stream, us): python, launch, item, synchronize, or a launch that waits for the other stream."""


@dataclass
class Machine:
    """A host and two streams, in us."""

    now: int = 0
    free: list[int] = field(default_factory=lambda: [0, 0])
    events: list[Event] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    number: int = 0

    def queue(self, stream: int, dur: int, *, behind: int = 0) -> tuple[int, int]:
        """Work launched now: its (start, end)."""
        start = max(self.now + LATENCY, self.free[stream], behind)
        self.free[stream] = start + dur
        self.number += 1
        return start, start + dur

    def launch(self, stream: int, dur: int, *, waits: bool) -> None:
        if waits:
            self.events.append(call("cudaStreamWaitEvent", self.now, 1))
            self.now += 1
        start, _ = self.queue(stream, dur, behind=self.free[1 - stream] if waits else 0)
        self.events += [launch(self.now, LAUNCH, self.number), kernel("k", start, dur, self.number, stream=stream)]
        self.now += LAUNCH

    def item(self, stream: int, *, blocks: bool) -> None:
        """A copy and a wait for it; without the wait it costs a launch."""
        begin, (start, end) = self.now, self.queue(stream, COPY)
        self.now = max(begin + LAUNCH + 1, end) + RETURN if blocks else begin + LAUNCH
        synchronize = call("cudaStreamSynchronize", begin + LAUNCH + 1, self.now - begin - LAUNCH - 1)
        copy = memcpy("DtoH (Device -> Pinned)", start, COPY, self.number, stream=stream)
        self.events += [call("cudaMemcpyAsync", begin, LAUNCH, self.number), synchronize, copy]

    def synchronize(self, *, blocks: bool) -> None:
        begin = self.now
        self.now = max(begin, *self.free) + RETURN if blocks else begin
        self.events.append(call("cudaDeviceSynchronize", begin, self.now - begin))

    def end_step(self, number: int, begin: int) -> None:
        self.events.append(step(begin, self.now - begin, number))
        self.ends.append(max(self.free))


def run(program: list[list[Instruction]], has_sync: list[bool]) -> Machine:
    """The program with only some of its syncs, `has_sync` in order."""
    machine, sync = Machine(), iter(has_sync)
    for number, instructions in enumerate(program):
        begin = machine.now
        for what, stream, dur in instructions:
            if what == "python":
                machine.now += dur
            elif what == "item":
                machine.item(stream, blocks=next(sync))
            elif what == "synchronize":
                machine.synchronize(blocks=next(sync))
            else:
                machine.launch(stream, dur, waits=what == "waits")
        machine.end_step(number, begin)
    return machine


def random_program(rng: np.random.Generator) -> list[list[Instruction]]:
    """Steps that begin with a launch on each stream, host-bound here and device-bound there."""
    shares = {"python": 0.3, "launch": 0.5, "item": 0.08, "synchronize": 0.06, "waits": 0.06}
    heavy = int(rng.choice([8, 40, 120]))
    program: list[list[Instruction]] = []
    for _ in range(STEPS):
        drawn = rng.choice(list(shares), 60, p=list(shares.values())).tolist()
        chosen = [(what, int(rng.integers(2)), int(rng.integers(1, heavy))) for what in drawn]
        program.append([("launch", 0, 9), ("launch", 1, 9), *chosen, ("launch", 0, 9)])
    return program


@pytest.mark.parametrize("seed", range(60))
def test_a_step_without_some_syncs_lasts_as_long_as_replay_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng)
    count = sum(what in ("item", "synchronize") for instructions in program for what, *_ in instructions)
    observed = run(program, [True] * count)
    trace = build(*observed.events)
    assert len(host_waits(trace)) == count
    assert replay_of(trace).unexplained_ns() == 0
    for _ in range(5):
        has_sync = rng.random(count) < rng.choice([0.1, 0.5, 0.9])
        truth = run(program, has_sync.tolist())
        saved = np.diff([0, *observed.ends]) - np.diff([0, *truth.ends])
        assert np.array_equal(replay_of(trace).without_waits(~has_sync[None])[0], 1000 * saved)


@pytest.mark.slow
def test_replay_agrees_with_a_job_run_again_but_for_latencies_that_the_trace_hides() -> None:
    """Launch latencies vary; two threads, one to three streams with events.

    Without a sync the job gets as much shorter as replay says, plus the cost of a copy without its wait (free in the
    job run again). The rest, less than 3 in 100, is work whose latency was hidden while it queued.
    """
    num = num_within = 0
    for seed in range(120):
        job = a_job(seed)
        (timeline,), (trace,) = simulate(job), run_of(job).traces
        waits, calls = host_waits(trace), blocking_calls(trace)
        blocks = sorted(range(len(timeline.blocks)), key=lambda n: timeline.blocks[n].start)
        for index, number in enumerate(waits.call.tolist()):
            if number < 0:
                continue
            assert len(calls) == len(blocks)
            (without,) = simulate(replace(job, at_once=frozenset({(0, blocks[number])})))
            truth = max(work.end for work in timeline.works) - max(work.end for work in without.works)
            saved = int(replay_of(trace).without_waits(np.arange(len(waits))[None] == index).sum())
            copy_cost = int((waits.end - waits.start - waits.saves)[index])
            assert truth - copy_cost - 10_000 <= saved <= truth + 10_000, (seed, index)
            num, num_within = num + 1, num_within + (truth - copy_cost <= saved <= truth)
    assert num_within >= 0.97 * num
    assert num > 100
