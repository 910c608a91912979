"""The simulator itself: programs of a few lines whose times can be worked out by hand (microseconds)."""

from __future__ import annotations

from simulator import US, Job, simulate
from simulator.arrivals import arrivals
from simulator.instants import partition
from simulator.program import Allocate, Await, Collective, Copy, Instruction, Launch, Python, Record, Synchronize
from simulator.savings import cost, saving, starved, wait

QUICK = {"call": 2 * US, "delay": 3 * US}


def one_step(*body: Instruction) -> Job:
    return Job(steps=((body,),))


def kernel(us: int, stream: int = 7) -> Launch:
    return Launch("gemm", us * US, stream, **QUICK)


def spans_of(job: Job, rank: int = 0) -> list[tuple[float, float]]:
    return [(work.start / US, work.end / US) for work in simulate(job)[rank].works]


def test_a_stream_runs_in_order_and_the_host_runs_ahead() -> None:
    job = one_step(kernel(10), kernel(5))
    assert spans_of(job) == [(3, 13), (13, 18)]
    assert simulate(job)[0].steps == [(0, 4 * US)]


def test_streams_run_beside_each_other_but_where_one_awaits_an_event() -> None:
    assert spans_of(one_step(kernel(10), kernel(5, stream=8))) == [(3, 13), (5, 10)]
    assert spans_of(one_step(kernel(10), Record(1), Await(1, stream=8), kernel(5, stream=8))) == [(3, 13), (13, 18)]


def test_a_synchronize_returns_after_what_it_waits_for_and_what_follows_is_late() -> None:
    job = one_step(kernel(10), Synchronize("device", returns=4 * US), Python(5 * US), kernel(6))
    (timeline,) = simulate(job)
    (block,) = timeline.blocks
    assert (block.start, block.awaited, block.end) == (2 * US, 13 * US, 17 * US)
    assert spans_of(job) == [(3, 13), (25, 31)]
    assert (wait(block), starved(timeline, block), cost(timeline, block)) == (11 * US, 12 * US, 11 * US)
    assert saving(job, 0, 0) == 12 * US


def test_a_sync_before_which_nothing_runs_saves_what_it_blocks() -> None:
    job = one_step(kernel(1), Python(50 * US), Synchronize("device", call=7 * US), kernel(2))
    assert saving(job, 0, 0) == 7 * US


def test_an_allocation_costs_the_idle_time_inside_it_that_is_no_launch_latency() -> None:
    job = one_step(kernel(10), Allocate(30 * US), kernel(5))
    (timeline,) = simulate(job)
    assert spans_of(job) == [(3, 13), (35, 40)]
    assert starved(timeline, timeline.blocks[0]) == (3 - 2) * US + (32 - 13) * US
    assert cost(timeline, timeline.blocks[0]) == (32 - 13) * US
    assert saving(job, 0, 0) == (35 - 13) * US


def test_a_copy_and_its_synchronize_are_one_block_that_waits_for_the_copy() -> None:
    job = one_step(kernel(10), Copy(ns=2 * US, call=2 * US, delay=3 * US, returns=4 * US))
    (timeline,) = simulate(job)
    (block,) = timeline.blocks
    assert spans_of(job) == [(3, 13), (13, 15)]
    assert (block.kind, block.start, block.awaited, block.end) == ("dtoh", 2 * US, 15 * US, 19 * US)


def test_a_collective_ends_everywhere_when_the_last_has_come_and_the_data_is_through() -> None:
    def rank(late_us: int) -> tuple[Instruction, ...]:
        reduce = Collective("all_reduce", 64, transfer=30 * US, call=1 * US, delay=2 * US)
        return (Python(late_us * US), reduce)

    job = Job(steps=((rank(0),), (rank(40),), (rank(10),)))
    assert [spans_of(job, n) for n in range(3)] == [[(2.5, 72.5)], [(42.5, 72.5)], [(12.5, 72.5)]]
    (met,) = arrivals(simulate(job))
    assert (met.skew, met.transfer, met.wait(0), met.wait(1)) == (40 * US, 30 * US, 40 * US, 0)


def test_a_rank_that_waits_for_a_collective_waits_for_the_other_ranks() -> None:
    reduce = Collective("all_reduce", 64, transfer=30 * US, call=1 * US, delay=2 * US)
    first, second = (reduce, Synchronize("device", returns=US)), (Python(100 * US), reduce)
    timelines = simulate(Job(steps=((first,), (second,))))
    assert timelines[0].blocks[0].end == int(133.5 * US)


def test_every_instant_of_a_step_has_its_cause() -> None:
    job = one_step(Python(4 * US), kernel(10), Synchronize("device", returns=4 * US), Python(5 * US), kernel(6))
    cells = {category: ns / US for (_, _, category), ns in partition(simulate(job)[0]).items()}
    assert cells == {"host_bound": 4 + 2 + 5 + 2, "compute": 10 + 6, "launch_latency": 1 + 1, "sync_wait": 4}
