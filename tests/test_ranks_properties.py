"""Made-up jobs of eight ranks: no alarm where nothing is wrong, and the right name where something is.

A few dozen of each kind by default, a thousand under `-m slow`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from builder import table
from job import PHASES, US, Collective, Job, a_plan, simulate

from traceq.analyses.registry import analyze
from traceq.model import Run

FEW = 25
CASES = [
    pytest.param(range(FEW), id=f"{FEW} cases"),
    pytest.param(range(FEW, 1000), id="the rest of a thousand", marks=pytest.mark.slow),
]


@pytest.fixture(autouse=True)
def a_thousand_only_when_asked_for(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("slow") and request.config.option.markexpr != "slow":
        pytest.skip("a thousand cases take minutes: pytest -m slow")


def a_job(rng: random.Random, *, backends: Sequence[str] = ("nccl", "nccl", "gloo")) -> Job:
    """Any job: with or without sequence numbers, with clocks up to 5 ms apart."""
    backend = rng.choice(backends)
    return Job(
        num_steps=rng.randint(3, 5),
        plan=a_plan(rng, rng.randint(6, 12), alike=rng.random() < 0.5),
        backend=backend,
        numbered=backend == "nccl" and rng.random() < 0.5,
        offsets=tuple(rng.randrange(-5_000_000, 5_000_000) for _ in range(8)),
    )


def cut(rng: random.Random, job: Job, *, around: tuple[int, int] | None = None) -> Job:
    """Windows that open and close at different places on different ranks; `around` stays within all of them.

    A window holds no step mark that was open when it opened.
    """
    first, last = job.met[0], job.met[-1]
    low, high = around or (job.first_step + 1, job.first_step + job.num_steps - 2)
    opens = max(max(met.ended) for met in job.met if met.step < low) if low > job.first_step else min(first.arrived)
    closes = min(min(met.arrived) for met in job.met if met.step > high) if high < last.step else max(last.ended)
    early, late = min(first.arrived) - 500 * US, max(last.ended) + 500 * US
    for rank in range(job.num_ranks):
        if rng.random() < 0.5:
            job.cuts[rank] = (
                rng.randrange(early, max(opens - 200 * US, early + 1)),
                rng.randrange(min(closes + 200 * US, late - 1), late),
            )
    return job


def found_by(run: Run) -> tuple[list[str], list[str]]:
    """(stragglers, desyncs) in the words of the findings."""
    late, apart = analyze(run, "ranks").findings, analyze(run, "desync").findings
    return [one.text for one in late], [one.text for one in apart]


@pytest.mark.parametrize("seeds", CASES)
def test_a_job_without_fault_raises_no_alarm(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        job = simulate(rng, a_job(rng), jitter=rng.choice([5, 50, 200]) * US)
        run = (cut(rng, job) if rng.random() < 0.5 else job).run()
        assert found_by(run) == ([], []), seed


@pytest.mark.parametrize("seeds", CASES)
def test_a_straggler_is_named_with_what_keeps_it(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(10_000 + seed)
        job, late, in_kernel = a_job(rng), rng.randrange(8), rng.random() < 0.3
        place = rng.randrange(len(job.plan))
        whole_step = len(job.plan) * 150 * US
        delay = round(whole_step * rng.uniform(0.3, 0.8))
        simulate(rng, job, late=late, delay=delay, at_place=place, in_kernel=in_kernel, jitter=8 * US)
        run = (cut(rng, job) if rng.random() < 0.3 else job).run()
        report = analyze(run, "ranks")
        (finding,) = report.findings
        phase = PHASES[place >= len(job.plan) // 2]
        on_host, on_device = ("cpu_compute", "cpu_compute") if job.backend == "gloo" else ("host_bound", "compute")
        assert finding.key == f"rank {late}", seed
        assert f"its {on_device if in_kernel else on_host} in {phase} takes" in finding.text, (seed, finding.text)
        assert found_by(run)[1] == [], seed


def spoil(rng: random.Random, job: Job, step: int, how: str) -> tuple[list[Collective], int] | None:
    """(what the wrong rank issues in that step, the first place that differs); None without that fault."""
    doing = list(job.plan)
    place = rng.randrange(len(doing))
    if how == "missing":
        del doing[place]
    elif how == "swapped":
        if place + 1 == len(doing) or doing[place] == doing[place + 1]:
            return None
        doing[place], doing[place + 1] = doing[place + 1], doing[place]
    else:
        doing[place] = replace(doing[place], elements=doing[place].elements + 64)
    pairs = zip([*doing, None], job.plan, strict=False)
    return doing, next(at for at, (mine, usual) in enumerate(pairs) if mine != usual)


@pytest.mark.parametrize("seeds", CASES)
def test_a_dropped_swapped_or_resized_collective_is_found_and_named(seeds: range) -> None:
    """In steps that all windows hold. gloo's own row calls a reduce-scatter all_reduce, and is told apart by its op."""
    for seed in seeds:
        rng = random.Random(20_000 + seed)
        job, wrong, how = a_job(rng), rng.randrange(8), ("missing", "swapped", "different")[seed % 3]
        step = job.first_step + rng.randrange(1, job.num_steps - 1)
        while (spoilt := spoil(rng, job, step, how)) is None:
            job = replace(job, plan=a_plan(rng, 8))
        doing, place = spoilt
        simulate(rng, job, wrong={wrong: {step: doing}})
        if rng.random() < 0.5:
            cut(rng, job, around=(step, step))
        found = table(job.run(), "desync")
        named = {(row["rank"], row["how"], row["step"]) for row in found if row["how"]}
        assert named == {(wrong, how, step)}, (seed, found)
        assert len(found) == 8
        usual = next(row for row in found if not row["how"])
        assert (usual["name"], usual["elements"]) == (job.plan[place].name, job.plan[place].elements), (seed, place)
        assert usual["phase"] == PHASES[place >= len(job.plan) // 2], seed


@pytest.mark.parametrize("seed", range(5))
def test_clocks_and_the_order_of_ranks_change_nothing(seed: int) -> None:
    """Waits move by the noise of the ends at most."""
    rng = random.Random(30_000 + seed)
    job = simulate(rng, replace(a_job(rng, backends=["nccl"]), offsets=()), late=5, delay=600 * US)
    apart = replace(job, offsets=tuple(rng.randrange(-50_000_000, 50_000_000) for _ in range(8)))
    order = rng.sample(range(8), 8)
    renamed = replace(job, events=[job.events[rank] for rank in order])
    rows, moved, swapped = (table(one.run(), "ranks") for one in (job, apart, renamed))
    assert [row["verdict"] for row in rows] == [row["verdict"] for row in moved]
    wait = np.array([row["wait_ns"] for row in rows])
    assert np.abs(wait - [row["wait_ns"] for row in moved]).max() <= 300 * rows[0]["num"]
    assert [swapped[place]["wait_ns"] for place in range(8)] == [wait[rank] for rank in order]
    offsets = np.array([row["offset_ns"] for row in moved]) - np.array(apart.offsets)
    assert np.ptp(offsets) < 1000


@pytest.mark.parametrize("seed", range(5))
def test_waits_are_those_of_the_arrivals(seed: int) -> None:
    rng = random.Random(40_000 + seed)
    job = simulate(rng, a_job(rng, backends=["nccl"]), late=2, delay=300 * US)
    for row, truth in zip(table(job.run(), "ranks"), job.true_waits(), strict=True):
        assert row["wait_ns"] == pytest.approx(truth, abs=300 * row["num"])
