"""Two windows of one process, whose steps scatter: nothing is called a cause; a real change of 5 % is.

Each step has its own pace of the host and clock of the device, each op and kernel its own noise, and in some steps the
host loses its core. A window opens on work in flight, which the profiler sees run and not launched.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from builder import MAIN, call, read_text
from simulator import US, Job, Shape, Timeline, a_job, json_of, simulate
from simulator.edits import Edit, edited, named
from simulator.program import Backward, Instruction, Launch, Python, Scope

import traceq
from traceq.causes.host_line import ONCE
from traceq.compare.result import Cause, Traced
from traceq.model import Run

Steps = tuple[int, int]
"""The first step of a window, and the one behind its last."""

SHAPES = {
    "host-bound": Shape(layers=8, syncs=0.0, host_ns=60 * US, kernel_ns=15 * US, streams=1),
    "device-bound": Shape(layers=8, syncs=0.0, host_ns=5 * US, kernel_ns=200 * US, streams=1),
    "in between": Shape(layers=8, syncs=0.1, host_ns=20 * US, kernel_ns=60 * US, streams=2),
    "with syncs": Shape(layers=8, syncs=0.4, host_ns=10 * US, kernel_ns=100 * US, streams=1),
}
SEEDS = range(10)
NOTABLE, CHANGE, TOLD = 0.02, 0.05, 0.01
"""Parts of a step: above which there is no cause without a change, that a change takes, and that is told of it."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def scattered(job: Job, rng: random.Random) -> Job:
    """The job whose steps differ in pace by 3 %, ops by 10 %, kernels by 1 %; in some the host loses its core."""
    return replace(job, steps=tuple(tuple(one_step(step, rng) for step in steps) for steps in job.steps))


def one_step(step: tuple[Instruction, ...], rng: random.Random, known_pace: float = 0.0) -> tuple[Instruction, ...]:
    pace, clock, chance = rng.lognormvariate(0, 0.03), rng.lognormvariate(0, 0.005), rng.choice([0, 0, 0.005])
    pace, chance, noise = (known_pace, 0, 0.02) if known_pace else (pace, chance, 0.1)

    def on_host(ns: int) -> int:
        lost_ns = rng.randrange(100, 400) * US if rng.random() < chance else 0
        return round(ns * pace * rng.lognormvariate(0, noise)) + lost_ns

    def of(part: Instruction) -> Instruction:
        if isinstance(part, Python):
            return Python(on_host(part.ns))
        if isinstance(part, Scope):
            body = tuple(map(of, part.body))
            return replace(part, body=body, before=on_host(part.before), after=on_host(part.after))
        if isinstance(part, Backward):
            return Backward(tuple(map(of, part.body)))
        if isinstance(part, Launch):
            return replace(part, ns=round(part.ns * clock * rng.lognormvariate(0, 0.01)), call=on_host(part.call))
        return part

    return tuple(map(of, step))


def window(job: Job, timeline: Timeline, steps: Steps) -> Run:
    """What the profiler writes of some steps: what runs in them, whoever launched it, and its own synchronize."""
    document = json.loads(json_of(job, timeline))
    events = document["traceEvents"]
    marks = sorted(event["ts"] for event in events if event["name"].startswith("ProfilerStep#"))
    begin, end = marks[steps[0]], marks[steps[1]]
    called = {event["args"]["correlation"]: event["ts"] for event in events if event["cat"] == "cuda_runtime"}
    kept = [
        event
        for event in events
        if begin <= event["ts"]
        and (called[event["args"]["correlation"]] if event["cat"] in ON_DEVICE else event["ts"]) < end
    ]
    drained = max(event["ts"] + event["dur"] for event in kept)
    stop = call("cudaDeviceSynchronize", 0, 0, tid=MAIN) | {"ts": end, "dur": max(drained - end, 0.001)}
    return Run("window", (read_text(json.dumps({**document, "traceEvents": [*kept, stop]}).encode()),))


def explained(seed: int, shape: str, change: Callable[[int], Edit] | None = None) -> tuple[Traced, list[Cause]]:
    """The step of two windows of three to five steps each, and its causes; B's steps have the change, if any."""
    rng = random.Random(f"{shape} {seed}")
    num = rng.randrange(3, 6)
    job = edited(a_job(seed, num_steps=1, shape=SHAPES[shape]), named)
    (same,), (other,) = job.steps[0], job.steps[0]
    if change:
        (timeline,) = simulate(replace(job, steps=((same,) * 10,)))
        step_ns = max([timeline.steps[-1][1], *(work.end for work in timeline.works)]) / 10
        (other,) = edited(job, change(round(CHANGE * step_ns))).steps[0]
    job = scattered(replace(job, steps=((same,) * (num + 1) + (other,) * (num + 2),)), rng)
    (timeline,) = simulate(job)
    diff = traceq.diff(*(window(job, timeline, each) for each in ((1, num + 1), (num + 2, 2 * num + 2))))
    assert diff.traced is not None
    return diff.traced, [cause for cause in diff.causes if cause.names_a_change and cause.name != ONCE]


def longer(ns: int) -> Edit:
    """A layer whose host and kernel take longer: one of them is what the step waits for."""

    def of(layer: Scope) -> Scope:
        (made,) = layer.body
        assert isinstance(made, Scope)
        first, *rest = made.body
        assert isinstance(first, Launch)
        return replace(
            layer, body=(replace(made, before=made.before + ns, body=(replace(first, ns=first.ns + ns), *rest)),)
        )

    return of


def has_notable(seed: int, shape: str) -> bool:
    """Some cause takes 2 % of the step, though nothing was changed."""
    traced, causes = explained(seed, shape)
    return any(abs(cause.delta_ns) > NOTABLE * (traced.a_ns + traced.b_ns) / 2 for cause in causes)


def is_told(seed: int, shape: str) -> bool:
    """The layer that was made longer is a cause."""
    traced, causes = explained(seed, shape, longer)
    return sum(cause.delta_ns for cause in causes if "special" in cause.name) > TOLD * traced.a_ns


@pytest.mark.parametrize("shape", SHAPES)
def test_a_longer_layer_is_a_cause_and_the_scatter_of_steps_is_none(shape: str) -> None:
    assert not has_notable(0, shape)
    assert is_told(3, shape)


@pytest.mark.slow
def test_of_40_pairs_of_windows_two_may_have_a_cause_without_a_change_or_one_none_with_it() -> None:
    cases = [(seed, shape) for shape in SHAPES for seed in SEEDS]
    assert sum(has_notable(*case) for case in cases) <= 2
    assert sum(not is_told(*case) for case in cases) <= 1


@pytest.mark.parametrize(("paces", "has_pace"), [((1.0, 1.03, 1.12), False), ((1.08, 1.08, 1.08), True)])
def test_a_pace_by_which_steps_of_one_side_differ_is_not_that_of_the_side(
    paces: tuple[float, ...], *, has_pace: bool
) -> None:
    rng, job = random.Random(1), a_job(1, num_steps=1, shape=SHAPES["host-bound"])
    job = replace(job, steps=(tuple(one_step(job.steps[0][0], rng, pace) for pace in (1.0, *paces, *[1.0] * 4)),))
    (timeline,) = simulate(job)
    diff = traceq.diff(*(window(job, timeline, each) for each in ((1, 4), (4, 7))))
    assert any(cause.kind == "pace" for cause in diff.causes) == has_pace


def test_what_is_long_in_one_step_is_jitter_with_its_name() -> None:
    job = edited(a_job(1, num_steps=1, shape=SHAPES["host-bound"]), named)
    (usual,), (paused,) = job.steps[0], edited(job, longer(300 * US)).steps[0]
    job = replace(job, steps=(((*[usual] * 5, paused, *[usual] * 3)),))
    (timeline,) = simulate(job)
    diff = traceq.diff(*(window(job, timeline, each) for each in ((1, 4), (4, 7))))
    (cause,) = diff.causes
    assert cause.name == "1 kind of work, aten::special in forward, within jitter"
