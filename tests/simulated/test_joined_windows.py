"""Windows of the profiler that became one trace, as recordings on CUDA join them: whole steps read as they ran.

A program runs without a break; the profiler sees two steps, misses two, and so on. Each window opens on work that it
did not see launched, and ends with the synchronize of the profiler that stops.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builder import MAIN, call, read_text, table
from claims import contradictions
from simulator import US, Job, Shape, Timeline, a_job, json_of, simulate
from simulator.arrivals import arrivals
from simulator.edits import CHANGES, Edit, edited, named, slower_kernel
from simulator.instants import partition, windows
from simulator.program import Synchronize

pytest.importorskip("torch", reason="recording needs torch")

import traceq
from traceq.analysis.registry import sheet
from traceq.causes.critical_path import critical_path
from traceq.causes.replay import replay_of
from traceq.facts.events.device_work import device_work
from traceq.facts.events.unrecorded_work import unrecorded_work
from traceq.facts.timeline.blocking_copies_and_syncs import blocking_calls
from traceq.facts.timeline.steps import steps
from traceq.intervals import measure
from traceq.model import Category, Run, Trace
from traceq.recorder.tracing.traced_steps import joined_events
from traceq.whatif.job_replay import job_replay

pytestmark = pytest.mark.torch

SEEN = ((0, 1), (4, 5), (8, 9))
"""The steps of each window, the second of which is whole."""
WHOLE = {2 * turn + 1: last for turn, (_, last) in enumerate(SEEN)}
"""Index of a whole step in the joined trace -> the step of the program."""
PAUSES = (3, 7)
"""Steps at whose begin the device has nothing to do, as the profiler stopped before: work in flight is of one step."""
STOP = "cudaDeviceSynchronize"
NOISE_NS = 301
"""Up to which a simulated collective ends earlier or later on a rank; and half a nanosecond of medians."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
SHAPES = {
    "host-bound": Shape(layers=4, syncs=0.0, host_ns=60 * US, kernel_ns=15 * US, streams=1),
    "device-bound": Shape(layers=4, syncs=0.0, host_ns=5 * US, kernel_ns=200 * US, streams=1),
    "with syncs": Shape(layers=4, syncs=0.4, host_ns=10 * US, kernel_ns=100 * US, streams=1),
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def a_run(seed: int, shape: Shape, edit: Edit | None = None) -> tuple[Timeline, Trace]:
    """Eleven steps of a program and the trace of those seen."""
    job = edited(a_job(seed, num_steps=11, shape=shape), named)
    job = with_pauses(edited(job, edit) if edit else job)
    (timeline,) = simulate(job)
    return timeline, seen_of(job, timeline)


def with_pauses(job: Job) -> Job:
    """The job in which the host waits for the device between two windows."""
    ranks = [
        tuple((Synchronize("device"), *body) if step in PAUSES else body for step, body in enumerate(bodies))
        for bodies in job.steps
    ]
    return replace(job, steps=tuple(ranks))


def seen_of(job: Job, timeline: Timeline) -> Trace:
    """What the profiler recorded of a rank, in one trace."""
    document = json.loads(json_of(job, timeline, stacks=True, sync_rows=True))
    sessions = [session(document, seen) for seen in SEEN]
    joined = {**sessions[0], "traceEvents": list(joined_events(sessions))}
    return read_text(json.dumps(joined).encode())


def session(document: dict[str, Any], seen: tuple[int, int]) -> dict[str, Any]:
    """What one session of the profiler writes: it counts its steps from 2, and sees what runs, whoever launched it."""
    events = document["traceEvents"]
    marks = {event["name"]: event for event in events if event["name"].startswith("ProfilerStep#")}
    begin, end = [event["ts"] for event in marks.values()][seen[0] : seen[1] + 2 : 2]
    called = {event["args"]["correlation"]: event["ts"] for event in events if event["cat"] == "cuda_runtime"}
    kept = []
    for event in events:
        is_launched = event["cat"] not in ON_DEVICE or called.get(event["args"]["correlation"], end) < end
        if begin <= event["ts"] and is_launched and (event["cat"] in ON_DEVICE or event["ts"] < end):
            number = list(marks).index(event["name"]) if event["name"] in marks else None
            kept.append(event | ({} if number is None else {"name": f"ProfilerStep#{2 + number - seen[0]}"}))
    drained = max(event["ts"] + event["dur"] for event in kept)
    stop = call(STOP, 0, 0, tid=MAIN) | {"ts": end, "dur": max(drained - end, 0.001)}
    return {**document, "traceEvents": [*kept, stop]}


@pytest.mark.slow
@each_shape
def test_whole_steps_have_the_windows_and_the_partition_that_they_had(shape: Shape) -> None:
    for seed in range(6):
        timeline, trace = a_run(seed, shape)
        marks, expected, cells = steps(trace), windows(timeline), partition(timeline)
        assert marks.by_device
        assert marks.begins_session.tolist() == [True, False] * len(SEEN)
        origin_ns = int(marks.window[1, 1]) - expected[1][1]
        assert len(unrecorded_work(trace)) == 0
        rows = table(trace, "partition")
        for index, step in WHOLE.items():
            assert (marks.window[index] - origin_ns).tolist() == list(expected[step]), (seed, step)
            number = marks.number[index]
            of_step = {(row["phase"], row["category"]): row["dur_ns"] for row in rows if row["step"] == number}
            assert of_step == {key[1:]: ns for key, ns in (+cells).items() if key[0] == step}, (seed, step)


@each_shape
def test_steps_that_begin_with_work_in_flight_do_not_count(shape: Shape) -> None:
    for seed in range(6):
        _, trace = a_run(seed, shape)
        marks, work = steps(trace), device_work(trace)
        assert set(WHOLE) <= set(marks.counted.nonzero()[0].tolist())
        assert (~work.linked == work.before_window).all()
        for index in (2, 4):
            start, end = marks.window[index].tolist()
            in_flight = work.before_window & (work.start < end) & (work.end > start)
            assert marks.partial[index] or not in_flight.any(), (seed, index)
            assert start >= marks.host[index, 0], (seed, index)


def test_the_profilers_own_synchronizes_are_no_syncs_of_the_step() -> None:
    for shape in SHAPES.values():
        _, trace = a_run(0, shape)
        rows = trace.events.rows(Category.RUNTIME).tolist()
        assert sum(trace.events.text(row) == STOP for row in rows) == len(SEEN)
        assert STOP not in [trace.events.text(row) for row in blocking_calls(trace).rows.tolist()]


@each_shape
def test_replay_reproduces_every_step_and_the_critical_path_tiles_those_that_count(shape: Shape) -> None:
    for seed in range(6):
        _, trace = a_run(seed, shape)
        marks, path = steps(trace), critical_path(trace)
        window_ns = marks.window[:, 1] - marks.window[:, 0]
        assert replay_of(trace).step_ns.tolist() == window_ns.tolist(), seed
        assert measure(path.parts) == window_ns[marks.counted].sum()


@pytest.mark.parametrize("edit", CHANGES, ids=lambda edit: edit.__name__)
@each_shape
def test_a_change_is_the_cause_of_what_whole_steps_take_longer(shape: Shape, edit: Edit) -> None:
    if shape is SHAPES["host-bound"] and edit is slower_kernel:
        pytest.skip("the device only idles less")
    (timeline_a, a), (timeline_b, b) = a_run(1, shape), a_run(1, shape, edit)
    diff = traceq.diff(*(Run(side, (trace,)) for side, trace in (("a", a), ("b", b))))
    assert diff.traced is not None
    true = diff.traced.delta_ns
    if steps(a).counted.tolist() == steps(b).counted.tolist() == [False, True] * len(SEEN):
        sums = [
            sum(windows(each)[step][1] - windows(each)[step][0] for step in WHOLE.values())
            for each in (timeline_a, timeline_b)
        ]
        assert true == round((sums[1] - sums[0]) / len(WHOLE))
    assert sum(cause.delta_ns for cause in diff.causes) == true
    claims = [cause for cause in diff.causes if cause.names_a_change]
    of_change = [cause for cause in claims if CHANGES[edit] in cause.name or "check" in cause.line]
    assert abs(sum(cause.delta_ns for cause in of_change) - true) <= max(0.02 * abs(true), 1_000)


@pytest.mark.parametrize("seed", range(4))
def test_clocks_and_waits_of_ranks_are_those_of_whole_steps(seed: int) -> None:
    job = with_pauses(a_job(seed, num_ranks=2, num_steps=11, shape=replace(SHAPES["with syncs"], collectives=True)))
    timelines = simulate(job)
    run = Run("job", tuple(seen_of(job, timeline) for timeline in timelines))
    numbers = set.intersection(*(set(np.flatnonzero(steps(trace).counted).tolist()) for trace in run.traces))
    assert set(WHOLE) <= numbers
    program = [step for seen in SEEN for step in seen]
    met = [one for one in arrivals(timelines)[1:] if one.step in {program[number] for number in numbers}]
    rows = table(run, "ranks")
    for row in rows:
        assert (row["num"], row["num_steps"]) == (len(met), len(numbers))
        assert row["wait_ns"] == pytest.approx(sum(one.wait(row["rank"]) for one in met), abs=NOISE_NS * row["num"])
    offsets = np.array([row["offset_ns"] for row in rows]) - np.array(job.offsets)
    assert np.ptp(offsets) <= NOISE_NS
    ran = np.array([[windows(timeline)[program[number]] for number in sorted(numbers)] for timeline in timelines])
    begin_ns, end_ns = ran.max(axis=0).T  # the job's step lasts until the last rank's, from the end of the one before
    assert np.abs(job_replay(run).observed_ns - (end_ns - begin_ns)).max() <= 2 * NOISE_NS
    assert list(contradictions(sheet(run))) == []
