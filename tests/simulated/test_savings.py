"""What a sync costs against what its removal saves: the same program, run again with a call that takes no time.

What must hold, and why no more: a program that is t shorter on the host is at most t shorter in all. On one stream the
device gains at least what it lacked after the sync, and at most all that it idled since; between the two lie the gaps
that the host fills later with the head start it got. With several streams their overlap changes too, so that only the
first bound holds.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from builder import table
from simulator import US, Job, Shape, a_job, run_of, simulate
from simulator.generate import a_shape
from simulator.instants import idle
from simulator.program import Instruction, Synchronize, item, load, nonzero, upload
from simulator.savings import cost, saving

from traceq.model import Run

FEW, MANY = 120, 3000
CASES = [
    pytest.param(range(FEW), id=f"{FEW} programs"),
    pytest.param(range(FEW, MANY), id=f"the rest of {MANY}", marks=pytest.mark.many),
]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", CASES)
def test_on_one_stream_removing_a_sync_saves_its_cost_at_least_and_what_it_blocked_or_the_device_idled_at_most(
    seeds: range,
) -> None:
    num_exact = num = 0
    for seed in seeds:
        job = a_job(seed, shape=replace(a_shape(random.Random(seed), 1), streams=1, syncs=0.4))
        (timeline,) = simulate(job)
        for number, block in enumerate(timeline.blocks):
            saved, least = saving(job, 0, number), cost(timeline, block)
            idled = sum(max(0, gap.end - max(gap.start, block.start)) for gap in idle(timeline))
            assert least <= saved <= min(block.end - block.start, idled), (
                seed,
                number,
            )
            num, num_exact = num + 1, num_exact + (saved == least)
    assert num_exact > num / 2


@pytest.mark.parametrize("seeds", CASES)
def test_no_sync_saves_more_than_it_blocked(seeds: range) -> None:
    for seed in seeds:
        job = a_job(seed)
        (timeline,) = simulate(job)
        for number, block in enumerate(timeline.blocks):
            assert 0 <= saving(job, 0, number) <= block.end - block.start, (seed, number)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", CASES)
def test_without_its_syncs_a_program_has_none_that_cost_anything(seeds: range) -> None:
    for seed in seeds:
        job = a_job(seed)
        (timeline,) = simulate(job)
        without = replace(job, at_once=frozenset((0, number) for number in range(len(timeline.blocks))))
        rows = table(run_of(without), "syncs")
        assert sum(row["blocked_ns"] for row in rows) == sum(row["cost_ns"] for row in rows) == 0, (seed, rows)


DEEP = Shape(layers=5, syncs=0.0, host_ns=3 * US, kernel_ns=300 * US, streams=1)
STALLS = {
    "item": item(returns=3_000 * US),
    "nonzero": nonzero(returns=3_000 * US),
    "upload": upload(4096, 2 * US, returns=3_000 * US),
    "device": Synchronize("device", returns=3_000 * US),
}


def injected(job: Job, what: Instruction) -> Job:
    """The same with one thing more at the end of each forward."""
    steps = [
        tuple(
            replace(part, body=(*part.body, what)) if getattr(part, "name", "") == "forward" else part for part in body
        )
        for body in job.steps[0]
    ]
    return replace(job, steps=(tuple(steps),))


def window_ns(run: Run) -> int:
    return sum(row["window_ns"] for row in table(run, "steps"))


@pytest.mark.parametrize("kind", STALLS)
def test_behind_a_deep_queue_a_sync_costs_what_it_adds_when_the_program_is_simulated_anew(kind: str) -> None:
    """The queue is emptied first, and that costs nothing; the copy itself, and what it launches, run on the device."""
    for seed in range(10):
        job = a_job(seed, shape=DEEP)
        before, after = run_of(job), run_of(injected(job, STALLS[kind]))
        added = window_ns(after) - window_ns(before)
        local = {"item": 1_500, "nonzero": 4_500, "upload": 2_000}.get(kind, 0) * len(job.steps[0])
        costs = {row["key"]: row["cost_ns"] for row in table(after, "syncs")}
        entries = {row["key"]: row["cost_ns"] for row in table(before, "syncs")}
        more = {key: cost - entries.get(key, 0) for key, cost in costs.items()}
        selected = max(more, key=lambda key: more[key])
        assert more[selected] >= 0.98 * (added - local) > 0, seed
        assert sum(abs(cost) for key, cost in more.items() if key != selected) < 0.01 * added, seed


@pytest.mark.slow
def test_a_stall_that_the_queue_absorbs_costs_nothing_and_one_that_it_does_not_only_the_rest() -> None:
    """Of the host alone: a data loader, whose time shows where the device waits for it."""
    for seed in range(10):
        job = a_job(seed, shape=DEEP)
        before = run_of(job)
        for stall in (100 * US, 5_000 * US):
            after = run_of(injected(job, load(stall)))
            added = window_ns(after) - window_ns(before)
            assert added < stall * len(job.steps[0])
            grown = Counter(cells(after))
            grown.subtract(cells(before))
            waits = sum(grown.pop(category, 0) for category in ("host_bound", "sync_wait", "launch_latency"))
            assert waits == pytest.approx(added, abs=0.01 * added), seed
            assert not any(grown.values()), seed


def cells(run: Run) -> Counter[str]:
    sums: Counter[str] = Counter()
    for row in table(run, "partition"):
        sums[row["category"]] += row["dur_ns"]
    return sums
