"""Causes of a difference against machines that are simulated: a program is run twice, once with one thing changed.

The simulator shares nothing with the graph that tells the causes: in it hosts, streams, a launch queue and collectives
carry out instructions, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from simulator import US, Job, Shape, a_job, run_of
from simulator.edits import CHANGES, Edit, edited, named, slower_host, slower_kernel, with_item, with_op

import traceq
from traceq.causes.holds import launch_queue_length

SHAPES = {
    "host-bound": Shape(layers=6, syncs=0.0, host_ns=60 * US, kernel_ns=15 * US, streams=1),
    "device-bound": Shape(layers=6, syncs=0.0, host_ns=5 * US, kernel_ns=200 * US, streams=1),
    "in between": Shape(layers=6, syncs=0.1, host_ns=20 * US, kernel_ns=60 * US, streams=2),
    "with syncs": Shape(layers=6, syncs=0.4, host_ns=10 * US, kernel_ns=100 * US, streams=3),
}
DEEP = Shape(layers=250, syncs=0.0, host_ns=2 * US, kernel_ns=60 * US, streams=1)
QUEUE, GRAIN_NS = 1_000, 1_000


def assert_told(job: Job, edit: Edit) -> int:
    """The causes give the change its delta, and nothing else more than a hundredth; returns the delta, ns."""
    word, before = CHANGES[edit], edited(job, named)
    diff = traceq.diff(*(run_of(side, stacks=True, sync_rows=True) for side in (before, edited(before, edit))))
    assert diff.traced is not None
    true, claims = diff.traced.delta_ns, [cause for cause in diff.causes if cause.names_a_change]
    assert sum(cause.delta_ns for cause in diff.causes) == true
    of_change = [cause for cause in claims if word in cause.name or "check" in cause.line]
    assert abs(sum(cause.delta_ns for cause in of_change) - true) <= max(0.02 * abs(true), GRAIN_NS)
    assert all(not cause.ranks or cause.ranks == ("0",) for cause in of_change)
    others = [cause for cause in claims if cause not in of_change]
    assert all(abs(cause.delta_ns) <= max(0.01 * abs(true), GRAIN_NS) for cause in others), others
    return true


@pytest.mark.slow
@pytest.mark.parametrize("edit", CHANGES, ids=lambda edit: edit.__name__)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_change_is_the_cause_of_what_the_changed_program_takes(shape: str, edit: Edit) -> None:
    deltas = [assert_told(a_job(seed, num_steps=3, shape=SHAPES[shape]), edit) for seed in range(12)]
    assert any(deltas) or (shape, edit) == ("host-bound", slower_kernel)  # which only lets the device idle less


@pytest.mark.parametrize(
    "seeds", [range(2), pytest.param((3, 4, 5, 6, 7, 8, 9), marks=pytest.mark.slow)], ids=["2", "7 more"]
)
@pytest.mark.parametrize("edit", CHANGES, ids=lambda edit: edit.__name__)
def test_one_change_on_one_of_three_ranks_is_the_cause_on_that_rank(edit: Edit, seeds: Sequence[int]) -> None:
    assert all(assert_told(a_job(seed, num_steps=3, num_ranks=3), edit) for seed in seeds)


@pytest.mark.parametrize(
    ("edit", "is_hidden"), [(slower_host, True), (slower_kernel, False), (with_item, False), (with_op, False)]
)
def test_where_the_launch_queue_is_full_it_takes_time_from_the_device_to_make_a_step_longer(
    edit: Edit, *, is_hidden: bool
) -> None:
    """An `.item()` a step costs what the host needs to fill the queue again, not the wait for its 1,000 launches."""
    job = replace(a_job(1, num_steps=5, shape=DEEP), queue=QUEUE)
    assert launch_queue_length(run_of(job).traces[0]) == QUEUE - 1  # the launch that waits is not in it
    assert (assert_told(job, edit) == 0) == is_hidden


def test_the_same_program_twice_has_no_cause() -> None:
    for shape in SHAPES.values():
        run = run_of(a_job(3, num_steps=3, shape=shape), stacks=True)
        assert traceq.diff(run, run).causes == ()
