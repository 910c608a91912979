"""Simulated jobs of eight ranks: no alarm where nothing is wrong, and the right name where something is.

Some of each kind by default, a thousand under `-m many`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from builder import table
from simulator import US, Timeline, run_of, simulate, trace_of
from simulator.arrivals import Arrival, arrivals
from simulator.meetings import Late, Meetings

from traceq.analysis.registry import analyze
from traceq.claims.claim import Claim
from traceq.model import Run

FEW = 15
CASES = [
    pytest.param(range(FEW), id=f"{FEW} cases"),
    pytest.param(range(FEW, 1000), id="the rest of a thousand", marks=pytest.mark.many),
]
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))]
FIRST_STEP = 10


def a_plan(rng: random.Random, length: int, *, few_sizes: bool = False) -> list[tuple[str, int]]:
    """Collectives of a step; `few_sizes`: sizes repeat, as those of buckets and layers do."""
    names = ["all_reduce", "all_gather", "reduce_scatter"]
    sizes = [1024, 4096] if few_sizes else [64 * n for n in range(1, 200)]
    return [(rng.choice(names[:2] if few_sizes else names), rng.choice(sizes)) for _ in range(length)]


def some_meetings(rng: random.Random, *, backends: Sequence[str] = ("nccl", "nccl", "gloo")) -> Meetings:
    """Any job, with clocks up to 5 ms apart."""
    return Meetings(
        plan=a_plan(rng, rng.randint(6, 12), few_sizes=rng.random() < 0.5),
        num_steps=rng.randint(3, 5),
        backend=rng.choice(backends),
        offsets=tuple(rng.randrange(-5_000_000, 5_000_000) for _ in range(8)),
    )


def recorded(rng: random.Random, meetings: Meetings, *, cut: bool, around: tuple[int, int] | None = None) -> Run:
    """The traces, with or without sequence numbers.

    `cut`: windows open and close at different times on half of the ranks; `around`: steps that all windows cover.
    """
    job = meetings.job(rng)
    timelines, numbered = simulate(job), rng.random() < 0.5
    windows = [random_window(rng, timelines, around) if cut and rng.random() < 0.5 else None for _ in timelines]
    traces = [
        trace_of(job, timeline, numbered=numbered, window=window)
        for timeline, window in zip(timelines, windows, strict=True)
    ]
    return Run("job", tuple(traces))


def random_window(rng: random.Random, timelines: list[Timeline], around: tuple[int, int] | None) -> tuple[int, int]:
    """A window that opens within the first step or soon after it, and closes late."""
    low, high = around or (1, len(timelines[0].steps) - 2)
    opens = min(timeline.steps[low][0] for timeline in timelines)
    closes = max(step_end(timeline, high) for timeline in timelines)
    early, late = min(timeline.steps[0][0] for timeline in timelines), max(timeline.end for timeline in timelines)
    return rng.randrange(early - 500 * US, opens), rng.randrange(closes + 1, late + 500 * US)


def step_end(timeline: Timeline, step: int) -> int:
    """End of a step on host and device."""
    return max([timeline.steps[step][1], *(work.end for work in timeline.works if work.step == step)])


def findings_of(run: Run) -> tuple[list[str], list[str]]:
    """Keys of (stragglers, desyncs)."""
    late, apart = analyze(run, "ranks").findings, analyze(run, "desync").findings
    return [one.key for one in late], [one.key for one in apart]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", CASES)
def test_a_job_without_fault_raises_no_alarm(seeds: range) -> None:
    """Two whole steps are left at least: of fewer collectives one rank may be the last of most by chance."""
    for seed in seeds:
        rng = random.Random(seed)
        meetings = replace(some_meetings(rng), jitter=rng.choice([5, 50, 200]) * US)
        whole = (1, meetings.num_steps - 1)
        assert findings_of(recorded(rng, meetings, cut=rng.random() < 0.5, around=whole)) == ([], []), seed


@pytest.mark.slow
@pytest.mark.parametrize("seeds", CASES)
def test_a_straggler_is_named_with_what_keeps_it(seeds: range) -> None:
    """A host that runs ahead hides what it does from the others, so the late one does enough to fall behind.

    One whole step, or two that scatter, tell no straggler from chance: one job in six at most.
    """
    missed = []
    for seed in seeds:
        rng = random.Random(10_000 + seed)
        meetings = some_meetings(rng)
        delay = round(len(meetings.plan) * 150 * US * rng.uniform(0.3, 0.8))
        late = Late(rng.randrange(8), delay, rng.randrange(len(meetings.plan)), in_kernel=rng.random() < 0.3)
        if meetings.backend == "nccl" and not late.in_kernel:
            late = replace(late, ns=late.ns + len(meetings.plan) * 150 * US)
        whole = (1, meetings.num_steps - 1)
        run = recorded(rng, replace(meetings, late=late, jitter=8 * US), cut=rng.random() < 0.3, around=whole)
        findings = analyze(run, "ranks").findings
        if not findings:
            missed.append(seed)
            continue
        (finding,) = findings
        on_host, on_device = ("cpu compute",) * 2 if meetings.backend == "gloo" else ("host-bound", "compute")
        assert finding.key == f"rank {late.rank}", seed
        cell = finding.subject.phase, finding.measures.get("category")
        expected = meetings.phase_of(late.place), on_device if late.in_kernel else on_host
        assert cell == expected or is_of_host(finding, late), (seed, finding)
        assert findings_of(run)[1] == [], seed
    assert len(missed) <= len(seeds) / 6, missed


def is_of_host(finding: Claim, late: Late) -> bool:
    """Whether the reason is the host as a whole, all of its delay: most of that is behind a queue of device work."""
    measures = finding.measures
    is_host = measures.get("what") == "aten::prepare" and "category" not in measures
    return is_host and not late.in_kernel and measures["excess_ns"] == pytest.approx(late.ns, rel=0.05)


def inject_fault(rng: random.Random, plan: list[tuple[str, int]], how: str) -> tuple[list[tuple[str, int]], int] | None:
    """(what the wrong rank issues in a step, the first place that differs); None without that fault."""
    wrong_plan = list(plan)
    place = rng.randrange(len(wrong_plan))
    if how == "missing":
        del wrong_plan[place]
    elif how == "swapped":
        if place + 1 == len(wrong_plan) or wrong_plan[place] == wrong_plan[place + 1]:
            return None
        wrong_plan[place], wrong_plan[place + 1] = wrong_plan[place + 1], wrong_plan[place]
    else:
        wrong_plan[place] = (wrong_plan[place][0], wrong_plan[place][1] + 64)
    pairs = zip([*wrong_plan, None], plan, strict=False)
    return wrong_plan, next(index for index, (issued, usual) in enumerate(pairs) if issued != usual)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", CASES)
def test_a_dropped_swapped_or_resized_collective_is_found_and_named(seeds: range) -> None:
    """In steps that all windows hold. gloo's own row calls a reduce-scatter all_reduce, and is told apart by its op."""
    for seed in seeds:
        rng = random.Random(20_000 + seed)
        meetings, wrong, how = some_meetings(rng), rng.randrange(8), ("missing", "swapped", "different")[seed % 3]
        step = rng.randrange(1, meetings.num_steps - 1)
        while (fault := inject_fault(rng, meetings.plan, how)) is None:
            meetings = replace(meetings, plan=a_plan(rng, 8))
        wrong_plan, place = fault
        run = recorded(
            rng, replace(meetings, wrong={(wrong, step): wrong_plan}), cut=rng.random() < 0.5, around=(step, step)
        )
        result = table(run, "desync")
        named = {(row["rank"], row["how"], row["step"]) for row in result if row["how"]}
        assert named == {(wrong, how, FIRST_STEP + step)}, (seed, result)
        assert len(result) == 8
        usual = next(row for row in result if not row["how"])
        assert (usual["name"], usual["elements"]) == meetings.plan[place], (seed, place)
        assert usual["phase"] == meetings.phase_of(place), seed


@pytest.mark.parametrize("seed", SEEDS)
def test_clocks_and_the_order_of_ranks_change_nothing(seed: int) -> None:
    """Waits move by the noise of the ends at most."""
    meetings = replace(
        some_meetings(random.Random(seed), backends=["nccl"]), late=Late(5, 2_500 * US), num_steps=4, offsets=()
    )
    job = meetings.job(random.Random(30_000 + seed))
    apart = replace(job, offsets=tuple(random.Random(seed).randrange(-50_000_000, 50_000_000) for _ in range(8)))
    order = random.Random(seed).sample(range(8), 8)
    timelines = simulate(job)
    renamed = [replace(timelines[rank], rank=place) for place, rank in enumerate(order)]
    rows = table(run_of(job, timelines), "ranks")
    moved, swapped = table(run_of(apart, timelines), "ranks"), table(run_of(job, renamed), "ranks")
    assert [row["verdict"] for row in rows] == [row["verdict"] for row in moved]
    wait = np.array([row["wait_ns"] for row in rows])
    assert np.abs(wait - [row["wait_ns"] for row in moved]).max() <= 300 * rows[0]["num"]
    assert [swapped[place]["wait_ns"] for place in range(8)] == [wait[rank] for rank in order]
    offsets = np.array([row["offset_ns"] for row in moved]) - np.array(apart.offsets)
    assert np.ptp(offsets) < 1000


@pytest.mark.parametrize("noise", [0, 300])
@pytest.mark.parametrize("seed", SEEDS)
def test_waits_and_clocks_are_those_that_were_simulated_within_the_noise_of_the_ends(seed: int, noise: int) -> None:
    """And one nanosecond: the median of an even number of ends may lie between two of them.

    Without the first step, which the device ends later than the host.
    """
    rng = random.Random(40_000 + seed)
    meetings = replace(some_meetings(rng, backends=["nccl"]), late=Late(2, 2_500 * US), noise=noise)
    job = meetings.job(rng)
    timelines = simulate(job)
    met, rows = arrivals(timelines), table(run_of(job, timelines), "ranks")
    for row in rows:
        counted = [one for one in met[1:] if one.step >= meetings.num_steps - row["num_steps"]]
        truth = sum(one.wait(row["rank"]) for one in counted)
        assert (row["num"], row["num_steps"]) == (len(counted), meetings.num_steps - 1)
        assert row["wait_ns"] == pytest.approx(truth, abs=(noise + 1) * row["num"]), row
    offsets = np.array([row["offset_ns"] for row in rows]) - np.array(job.offsets)
    assert np.ptp(offsets) <= noise + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_waits_by_cause_are_those_that_were_simulated(seed: int) -> None:
    """Each collective's waits count to the last rank to come, to its phase and the collective's name."""
    rng = random.Random(60_000 + seed)
    meetings = replace(some_meetings(rng, backends=["nccl"]), late=Late(2, 2_500 * US), noise=0)
    job = meetings.job(rng)
    timelines = simulate(job)
    run = run_of(job, timelines)
    first_step = meetings.num_steps - table(run, "ranks")[0]["num_steps"]
    expected: Counter[tuple[int, str, str]] = Counter()
    times: Counter[tuple[int, str, str]] = Counter()
    for one in arrivals(timelines)[1:]:
        last = max(one.came, key=lambda rank: one.came[rank])
        if one.step >= first_step:
            expected[last, one.phase, one.what.name] += sum(one.wait(rank) for rank in one.came)
            times[last, one.phase, one.what.name] += 1
    rows = analyze(run, "ranks").table("caused_waits").to_dicts()
    assert {(row["rank"], row["phase"], row["name"]) for row in rows} == set(expected)
    for row in rows:
        key = (row["rank"], row["phase"], row["name"])
        assert row["num_last"] == times[key]
        assert row["caused_ns"] == pytest.approx(expected[key] / 7, abs=times[key])
        assert 0 <= row["exposed_ns"] <= row["caused_ns"]
    assert [row["caused_ns"] for row in rows] == sorted((row["caused_ns"] for row in rows), reverse=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_skew_and_transfer_of_each_collective_are_those_that_were_simulated(seed: int) -> None:
    rng = random.Random(50_000 + seed)
    job = replace(some_meetings(rng, backends=["nccl"]), noise=0).job(rng)
    timelines = simulate(job)
    expected: dict[tuple[str, str], list[Arrival]] = {}
    for one in arrivals(timelines):
        expected.setdefault((one.what.name, one.phase), []).append(one)
    skew = analyze(run_of(job, timelines), "ranks").tables[1]
    for cells in skew.rows:
        row = {column.key: cell for column, cell in zip(skew.columns, cells, strict=True)}
        selected = expected.pop((row["name"], row["phase"]))
        assert row["num"] == len(selected)
        assert row["bytes"] == sum(4 * one.what.elements for one in selected)
        assert row["shortest_ns"] == sum(one.transfer for one in selected)
        assert row["skew_ns"] == pytest.approx(sum(one.skew for one in selected), abs=len(selected))
    assert not expected
