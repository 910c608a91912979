"""What a sync costs against what its removal saves: the same program, run again with a call that takes no time.

What must hold, and why no more: a program that is t shorter on the host is at most t shorter in all. On one stream the
device gains at least what it lacked after the sync, and at most all that it idled since; between the two lie the gaps
that the host fills later with the head start it got. With several streams their overlap changes too, so that only the
first bound holds. After an event more work may still be in the queue: what idles the device then is not the host.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from builder import table
from simulator import a_job, run_of, simulate
from simulator.generate import a_shape
from simulator.instants import idle
from simulator.savings import cost, saving
from simulator.timeline import Block

FEW, MANY = 120, 3000
CASES = [
    pytest.param(range(FEW), id=f"{FEW} programs"),
    pytest.param(range(FEW, MANY), id=f"the rest of {MANY}", marks=pytest.mark.slow),
]


@pytest.fixture(autouse=True)
def thousands_only_when_asked_for(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("slow") and request.config.option.markexpr != "slow":
        pytest.skip("thousands of programs take minutes: pytest -m slow")


def waits_for_all(block: Block) -> bool:
    return block.kind != "event"


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
            assert (least if waits_for_all(block) else 0) <= saved <= min(block.end - block.start, idled), (
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


@pytest.mark.parametrize("seeds", CASES)
def test_without_its_syncs_a_program_has_none_that_cost_anything(seeds: range) -> None:
    for seed in seeds:
        job = a_job(seed)
        (timeline,) = simulate(job)
        without = replace(job, at_once=frozenset((0, number) for number in range(len(timeline.blocks))))
        rows = table(run_of(without), "syncs")
        assert sum(row["blocked_ns"] for row in rows) == sum(row["cost_ns"] for row in rows) == 0, (seed, rows)
