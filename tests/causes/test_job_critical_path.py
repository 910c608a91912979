"""The critical path of a job: on which rank it runs, exact on a few lines, and in simulated and real jobs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from builder import Event, build, comms, kernel, launch, op, step, table, world
from numpy.typing import NDArray
from paths import TRACES
from simulator import US, run_of, simulate
from simulator.arrivals import arrivals
from simulator.kineto import BASE_NS, ORIGIN_NS
from simulator.meetings import Late, Meetings

from traceq.analysis.registry import analyze
from traceq.causes.critical_path import CriticalPath, PathKind
from traceq.causes.job_critical_path import JobPath, job_path, path_along, path_summary
from traceq.facts.ranks.job import job_of
from traceq.model import Caveat, Run, Trace
from traceq.runs.read import read

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
NUM_JOBS = 100


def meeting(number: int, start: int, end: int, group: str = "0") -> list[Event]:
    """The n-th all-reduce of a group, issued at 20 + 4n: its kernel runs from start to end."""
    index, corr = 20 + 4 * number, 100 + number
    reported = {"Process Group Name": group, "Seq": number}
    call = comms("allreduce", index, 3, (500, 500), **reported)
    return [call, launch(index + 1, 1, corr), kernel(NCCL, start, end - start, corr)]


def rank(number: int, *events: Event, size: int = 2, ahead: int = 0, steps: int = 0) -> Trace:
    """One rank whose host is in a step for 50 us, by a clock that is `ahead` us."""
    return build(step(0, 50, steps), *events, **world(number, size), origin=ahead)


@dataclass(frozen=True)
class PathOnRanks:
    """The path of a job, and its part on each rank."""

    number: NDArray[np.int64]
    window: NDArray[np.int64]
    ahead: NDArray[np.int64]
    paths: tuple[CriticalPath, ...]


def path_of(traces: Sequence[Trace]) -> PathOnRanks | Caveat | None:
    result = job_path(job_of(Run("job", tuple(traces))), [path_summary(trace) for trace in traces])
    if not isinstance(result, JobPath):
        return result
    paths = tuple(path_along(trace, legs) for trace, legs in zip(traces, result.legs, strict=True))
    return PathOnRanks(result.number, result.window, result.ahead, paths)


def pieces(*traces: Trace) -> list[tuple[int, str, str, float]]:
    """(rank, kind, name, us) of the job's path in order of time; neighbours alike are one."""
    result = path_of(traces)
    assert isinstance(result, PathOnRanks)
    reported: list[tuple[int, int, int, str, str]] = []
    for trace, path, ahead in zip(traces, result.paths, result.ahead.tolist(), strict=True):
        for (start, end), on, name in zip(path.parts.tolist(), path.kind.tolist(), path.name.tolist(), strict=True):
            reported.append(
                (start - ahead, end - ahead, trace.rank, PathKind(on).name.lower(), path.texts[name].partition("(")[0])
            )
    reported.sort()
    merged: list[tuple[int, str, str, float]] = []
    for start, end, *what in reported:
        long = (end - start) / 1000
        if merged and merged[-1][:3] == tuple(what):
            long += merged.pop()[3]
        merged.append((*what, long))
    return merged


LATE = launch(2, 1, 1), kernel("long", 7, 80, 1), *meeting(0, 90, 100), *meeting(1, 100, 110), *meeting(2, 110, 120)
EARLY = launch(2, 1, 1), kernel("short", 7, 20, 1), *meeting(0, 30, 100), *meeting(1, 100, 110), *meeting(2, 110, 120)
WAITS_ONCE = [
    (1, "python", "", 2),
    (1, "launch_latency", "", 5),
    (1, "kernel", "long", 80),
    (1, "queue", "", 3),
    (0, "collective", NCCL.partition("(")[0], 30),
]


@pytest.mark.parametrize("ahead", [0, 5000])
def test_a_path_leaves_a_rank_where_it_waits_for_another(ahead: int) -> None:
    """Both end at 120; rank 0 is in the first collective since 30, rank 1 comes at 90, by whatever clock."""
    assert pieces(rank(0, *EARLY), rank(1, *LATE, ahead=ahead)) == WAITS_ONCE


def test_the_rank_that_ends_last_ends_the_path() -> None:
    more = launch(38, 1, 9), kernel("more", 125, 15, 9)
    last = [(1, "collective", NCCL.partition("(")[0], 30), (1, "queue", "", 5), (1, "kernel", "more", 15)]
    assert pieces(rank(0, *EARLY), rank(1, *LATE, *more)) == [*WAITS_ONCE[:-1], *last]


def test_a_path_comes_back_to_a_rank_that_is_late_later() -> None:
    """Rank 1 is late at the first, rank 0 at the second: it takes 40 between them."""
    local = (
        launch(2, 1, 1),
        kernel("short", 7, 20, 1),
        *meeting(0, 30, 100),
        launch(26, 1, 2),
        kernel("own", 100, 40, 2),
    )
    one = rank(0, *local, *meeting(2, 140, 150), *meeting(3, 150, 160))
    two = rank(1, *LATE[:5], *meeting(2, 100, 150), *meeting(3, 150, 160))
    name = NCCL.partition("(")[0]
    assert pieces(one, two) == [
        *WAITS_ONCE[:-1],
        (0, "collective", name, 10),
        (0, "kernel", "own", 40),
        (0, "collective", name, 20),
    ]


def test_a_host_that_is_late_to_launch_is_the_path_of_the_job() -> None:
    local = op("aten::prepare", 1, 19), *meeting(0, 25, 35), *meeting(1, 35, 45), *meeting(2, 45, 55)
    early = (*meeting(0, 22, 35), *meeting(1, 35, 45), *meeting(2, 45, 55))
    assert pieces(rank(0, *early), rank(1, *local)) == [
        (1, "python", "", 1),
        (1, "host_op", "aten::prepare", 19),
        (1, "host_op", "record_param_comms", 1),
        (1, "launch_latency", "", 4),
        (0, "collective", NCCL.partition("(")[0], 30),
    ]


def test_clocks_are_joined_through_a_rank_of_two_groups() -> None:
    """Rank 1 meets 0 in one group and 2 in the other; 2 is late for 1, and 1 therefore for 0."""
    far = launch(2, 1, 1), kernel("long", 7, 80, 1)
    pair = [*meeting(0, 90, 100, "b"), *meeting(1, 100, 105, "b"), *meeting(2, 105, 110, "b")]
    wait = [*meeting(0, 10, 100, "b"), *meeting(1, 100, 105, "b"), *meeting(2, 105, 110, "b")]
    late, early = (
        [*meeting(3, index, 120, "a"), *meeting(4, 120, 125, "a"), *meeting(5, 125, 130, "a")] for index in (110, 12)
    )
    traces = rank(0, *early, size=3), rank(1, *wait, *late, size=3, ahead=900), rank(2, *far, *pair, size=3, ahead=2)
    result = pieces(*traces)
    assert [(one, kind) for one, kind, _, _ in result] == [
        (2, "python"), (2, "launch_latency"), (2, "kernel"), (2, "queue"), (1, "collective"), (0, "collective"),
    ]  # fmt: skip
    assert sum(long for *_, long in result) == 130


def refused(*traces: Trace) -> str:
    result = path_of(traces)
    assert isinstance(result, Caveat)
    return result.text


def test_a_path_is_refused_where_ends_do_not_fall_together() -> None:
    apart = [event for n in range(4) for event in meeting(n, 90 + 20 * n, 100 + 20 * n + 9 * (n % 2))]
    local = [event for n in range(4) for event in meeting(n, 90 + 20 * n, 100 + 20 * n)]
    text = refused(rank(0, *local), rank(1, *apart))
    assert text.endswith("clocks cannot be compared")
    run = Run("job", (rank(0, *local), rank(1, *apart)))
    report = analyze(run, "critical")
    assert (table(run, "critical") != [], report.tables[1].rows, report.caveats[0].text) == (True, (), text)


def test_a_path_is_refused_where_the_windows_hold_other_steps() -> None:
    assert refused(rank(0, *EARLY), rank(1, *LATE, steps=3)).endswith("counted on all of them")


def test_ranks_that_never_meet_and_one_rank_alone_have_no_path_of_a_job() -> None:
    alone = launch(2, 1, 1), kernel("a", 7, 80, 1)
    assert path_of([rank(0, *alone), rank(1, *alone)]) is None
    assert path_of([rank(0, *EARLY)]) is None


def assert_adds_up(result: PathOnRanks) -> None:
    """Its pieces tile the steps on one clock."""
    parts = np.concatenate([path.parts - ahead for path, ahead in zip(result.paths, result.ahead, strict=True)])
    parts = parts[np.argsort(parts[:, 0])]
    assert (parts[1:, 0] >= parts[:-1, 1]).all()
    steps = np.searchsorted(result.window[:, 0], parts[:, 0], "right") - 1
    total = np.bincount(steps, parts[:, 1] - parts[:, 0], len(result.number)).astype(np.int64)
    assert total.tolist() == (result.window[:, 1] - result.window[:, 0]).tolist()


def rank_at(result: PathOnRanks, instant: int) -> int:
    """On whose path an instant of the common clock is."""
    (rank,) = (
        index
        for index, (path, ahead) in enumerate(zip(result.paths, result.ahead.tolist(), strict=True))
        if ((path.parts[:, 0] <= instant + ahead) & (path.parts[:, 1] > instant + ahead)).any()
    )
    return rank


@pytest.mark.slow
def test_the_path_lies_on_the_late_rank_before_the_collective_that_it_is_late_for() -> None:
    for seed in range(NUM_JOBS):
        rng = random.Random(60_000 + seed)
        plan = [
            (rng.choice(["all_reduce", "all_gather", "reduce_scatter"]), 64 * rng.randint(1, 200)) for _ in range(6)
        ]
        late = Late(rng.randrange(4), rng.randrange(1500, 3000) * US, rng.randrange(6), in_kernel=seed % 2 == 0)
        offsets = tuple(rng.randrange(-5_000_000, 5_000_000) for _ in range(4))
        job = Meetings(plan, num_ranks=4, jitter=8 * US, late=late, offsets=offsets).job(rng)
        timelines = simulate(job)
        result = path_of(run_of(job, timelines).traces)
        assert isinstance(result, PathOnRanks), seed
        assert_adds_up(result)
        met = arrivals(timelines)
        origin = BASE_NS + ORIGIN_NS + offsets[0]
        for number in result.number.tolist():
            came = met[6 * (number - job.first_step) + late.place].came
            assert rank_at(result, origin + came[late.rank] - 2 * US) == late.rank, (seed, number)
        on_rank = [int((path.parts[:, 1] - path.parts[:, 0]).sum()) for path in result.paths]
        assert int(np.argmax(on_rank)) == late.rank, seed


@pytest.mark.parametrize("name", ["nanogpt-h100-8r", "torchrec-v100-straggler-4r", "dlrm-v100-8r"])
def test_the_path_of_a_real_job_adds_up_to_its_steps(name: str) -> None:
    if not (TRACES / name).is_dir():
        pytest.skip(f"no {TRACES}")
    result = path_of(read(TRACES / name).traces)
    assert isinstance(result, PathOnRanks)
    assert_adds_up(result)


def test_a_second_of_torchrecs_step_is_python_in_the_sparse_arch_of_rank_2() -> None:
    if not (TRACES / "torchrec-v100-straggler-4r").is_dir():
        pytest.skip(f"no {TRACES}")
    report = analyze(read(TRACES / "torchrec-v100-straggler-4r"), "critical")
    result = report.tables[1]
    longest = dict(zip((column.key for column in result.columns), result.rows[0], strict=True))
    assert (longest["rank"], longest["kind"], longest["phase"]) == (2, "python", "## forward ##")
    assert (longest["name"], round(longest["step_ns"] / 1e6)) == ("# running sparse arch", 1002)
