"""Simulated jobs in which the change is then made: what replay says of it, and what came of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from simulator import US, run_of, simulate
from simulator.meetings import Late, Meetings
from simulator.program import Collective, Job, Launch, load

from traceq.whatif.intervention import Intervention, Weights
from traceq.whatif.interventions import (
    BalancedLoader,
    CommBandwidth,
    HiddenComm,
    Scaled,
    WithoutLoader,
    WithoutStraggler,
    WithoutSyncs,
)
from traceq.whatif.job_replay import JobReplay, job_replay
from traceq.whatif.predict import predict

PLAN = [("all_reduce", 4096), ("all_gather", 64), ("all_reduce", 512), ("reduce_scatter", 64)]
QUICK = 2
SEEDS = [pytest.param(seed, marks=[] if seed < QUICK else [pytest.mark.slow]) for seed in range(8)]
LAST = 2
"""Steps that are compared: those before them may begin in another state, or not be counted."""


def changed(part: Any, change: Callable[[Any], Any]) -> Any:
    """A program with other instructions."""
    if isinstance(part, tuple):
        return tuple(changed(each, change) for each in part)
    if not is_dataclass(part):
        return part
    inner = {each.name: changed(getattr(part, each.name), change) for each in fields(part)}
    return change(replace(part, **inner))  # type: ignore[type-var]


def replayed(job: Job) -> JobReplay:
    return job_replay(run_of(job, simulate(job)))


def a_job(seed: int, **options: Any) -> Job:
    rng = random.Random(seed)
    offsets = tuple(rng.randrange(-(10**6), 10**6) for _ in range(3)) if options.get("backend") != "gloo" else ()
    return Meetings(PLAN, num_ranks=3, num_steps=4, noise=0, offsets=offsets, **options).job(rng)


def check(before: Job, intervention: Intervention, after: Job, within: float = 0.01) -> float:
    """The mean step that was predicted is the one of the changed job, to a part of it."""
    replay = replayed(before)
    prediction = predict(replay, [intervention])
    real = float(replayed(after).observed_ns[-LAST:].mean())
    weights = Weights(replay, replay.observed)
    intervention.apply(replay, weights, most=False)
    saved = replay.saved_ns(weights.changed(), intervention.ignored(replay), most=False)
    expected = float((replay.observed_ns - saved)[-LAST:].mean())
    now = float(replay.observed_ns[-LAST:].mean())
    assert expected == pytest.approx(real, abs=within * now), (prediction.together, now, real)
    return (now - real) / now


def halved(part: Any) -> Any:
    return replace(part, ns=round(part.ns / 2)) if isinstance(part, Launch) else part


def half_transfer(part: Any) -> Any:
    return replace(part, transfer=round(part.transfer / 2)) if isinstance(part, Collective) else part


def no_transfer(part: Any) -> Any:
    return replace(part, transfer=0) if isinstance(part, Collective) else part


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("seed", SEEDS)
def test_cheaper_work_and_faster_transfers_are_what_was_predicted(seed: int, backend: str) -> None:
    job = a_job(seed, backend=backend)
    name = "gemm" if backend == "nccl" else "aten::linear"
    work = check(job, Scaled(name, 0.5), changed(job, halved), within=0.02)
    hidden = check(job, HiddenComm(), changed(job, no_transfer), within=0.02)
    assert work > 0.05
    assert hidden > 0.05


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("in_kernel", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_without_its_straggler_a_job_is_what_was_predicted(seed: int, backend: str, in_kernel: bool) -> None:
    late = Late(rank=seed % 3, ns=1500 * US, place=seed % 4, in_kernel=in_kernel)
    job = a_job(seed, backend=backend, late=late, ahead=in_kernel)
    on_time = a_job(seed, backend=backend, late=replace(late, ns=0), ahead=in_kernel)
    assert check(job, WithoutStraggler((late.rank,)), on_time, within=0.03) > 0.3
    assert replayed(job).stragglers.ranks in ((late.rank,), ())  # of three steps, most, and beyond their scatter


def loading(job: Job, waits: list[list[int]]) -> Job:
    """The job whose every step first waits so long for its data loader, on each rank."""
    return replace(
        job,
        steps=tuple(
            tuple((load(ns), *body) for ns, body in zip(of_rank, steps, strict=True))
            for of_rank, steps in zip(waits, job.steps, strict=True)
        ),
    )


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("seed", SEEDS)
def test_faster_and_balanced_loaders_are_what_was_predicted(seed: int, backend: str) -> None:
    rng = random.Random(1000 + seed)
    job = a_job(seed, backend=backend, ahead=False)
    waits = [[rng.randrange(100 * US, 900 * US) for _ in range(4)] for _ in range(3)]
    means = [sum(of_step) // 3 for of_step in zip(*waits, strict=True)]
    before = loading(job, waits)
    assert check(before, WithoutLoader(), loading(job, [[0] * 4] * 3), within=0.02) > 0.1
    assert check(before, BalancedLoader(), loading(job, [means] * 3), within=0.02) > 0.02


@pytest.mark.parametrize("seed", SEEDS)
def test_syncs_that_are_removed_on_all_ranks_save_what_was_predicted(seed: int) -> None:
    """Each host waits for every collective; without the waits, which block no time then, it is ahead."""
    job = a_job(seed, compute=60 * US, ahead=False)
    waits = frozenset((rank, number) for rank in range(3) for number in range(4 * len(PLAN)))
    assert check(job, WithoutSyncs(), replace(job, at_once=waits), within=0.02) > 0.2


@pytest.mark.parametrize("seed", SEEDS)
def test_the_range_of_a_bandwidth_holds_what_came_of_it(seed: int) -> None:
    """Transfers of the same kind differ, so that some of the shortest may be latency, or all of it be bytes."""
    job = a_job(seed)
    for factor in (2.0, 4.0):

        def faster(part: Any, factor: float = factor) -> Any:
            latency = 10 * US
            if not isinstance(part, Collective):
                return part
            return replace(part, transfer=round(latency + (part.transfer - latency) / factor))

        change = predict(replayed(job), [CommBandwidth(factor)]).together
        after = replayed(changed(job, faster))
        now, then = change.now_ns, float(after.observed_ns.mean())
        assert change.least_saved_ns - 0.02 * now <= now - then <= change.most_saved_ns + 0.02 * now
        assert change.least_saved_ns < change.most_saved_ns
