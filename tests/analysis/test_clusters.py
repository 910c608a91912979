"""Which ranks are alike: exact numbers by hand, then jobs whose late ranks, hosts and phases a seed has drawn."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from builder import annotation, build, comms, kernel, launch, read_text, step, world
from fleet import MS, Fleet, play

from traceq.analysis.clusters import PhaseTimes, merge
from traceq.analysis.registry import analyze
from traceq.claims.claim import Claim, Subject
from traceq.facts.ranks.job import job_of
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.model import Run, Timings, Trace
from traceq.report import Report
from traceq.stats.ranks import cluster_ranks, gap_clusters

PHASES = ("dataload", "forward", "backward", "optimizer")
DRAWN, MANY = 200, 200
Row = dict[str, Any]


def rows(report: Report, key: str) -> list[Row]:
    (table,) = (table for table in report.tables if table.key == key)
    return [dict(zip((column.key for column in table.columns), row, strict=True)) for row in table.rows]


def computing(rank: int, forward_us: int, num_ranks: int = 9) -> Trace:
    """A step of 1 ms: computes in forward, then waits in a collective of backward until 900, and computes 50 more."""
    return build(
        step(0, 1000),
        annotation("forward", 0, 100),
        annotation("backward", 100, 900),
        launch(2, 3, 1),
        kernel("gemm", 10, forward_us, 1),
        comms("allreduce", 110, 10, (1000, 1000)),
        launch(112, 3, 2),
        kernel("ncclDevKernel_AllReduce(x)", 10 + forward_us, 890 - forward_us, 2, stream=20),
        launch(140, 3, 3),
        kernel("gemm", 900, 50, 3),
        **world(rank, num_ranks),
        host_name=f"host{rank // 3}",
    )


def job(*forward_us: int) -> Report:
    return analyze(
        Run("job", tuple(computing(rank, us, len(forward_us)) for rank, us in enumerate(forward_us))), "clusters"
    )


def test_the_rank_that_computes_longer_is_a_cluster_of_its_own() -> None:
    most, late = rows(job(*[500] * 7, 640, 500), "clusters")
    assert (most["num_ranks"], most["ranks"], most["num_hosts"]) == (8, "0-6, 8", 3)
    assert (late["ranks"], late["hosts"], late["late_ns"]) == ("7", "host2", 140_000)
    assert (late["phase"], late["phase_ns"], late["category"]) == ("forward", 140_000, "compute")
    assert (most["waits_ns"] - late["waits_ns"], late["own_ns"] - most["own_ns"]) == (140_000, 140_000)


def test_the_claim_has_ranks_host_phase_and_time() -> None:
    (claim,) = job(*[500] * 6, 640, 640, 640).findings
    assert (claim.code, claim.severity, claim.ns) == ("late_ranks", "high", 140_000)
    assert claim.subject == Subject(phase="forward", key="rank 6")
    assert claim.measures == {
        "ranks": "ranks 6-8",
        "num_late": 3,
        "late_ns": 140_000,
        "phase_ns": 140_000,
        "category": "compute",
        "host": "host2",
        "num_hosts": 1,
        "num_alike": 6,
    }


def test_unprofiled_steps_decide_which_clusters_are_late() -> None:
    """The traced step of both runs has three late ranks of nine; 400 unprofiled ones of 1 ms have them, or not."""
    traces = tuple(computing(rank, us, 9) for rank, us in enumerate([500] * 6 + [640] * 3))

    def findings_of(late_us: float, num: int = 400) -> tuple[Claim, ...]:
        forward = np.random.default_rng(1).normal(500, 10, (9, num)) + np.r_[np.zeros(6), [late_us] * 3][:, None]
        phase_ns = (np.stack([forward, 1000 - forward], axis=2) * 1000).astype(np.int64)
        none = np.zeros(9, np.int64)
        times = (phase_ns.sum(axis=2), phase_ns, phase_ns, np.arange(num), none, none, none)
        timings = Timings(
            ("forward", "backward"), *times, num_warmup=0, by_device=False, host_step_ns=phase_ns.sum(axis=2)
        )
        return analyze(Run("job", traces, timings=timings), "clusters").findings

    assert findings_of(0) == ()
    assert [finding.key for finding in findings_of(140)] == ["rank 6"]
    assert findings_of(140, num=399) == ()


def test_percentiles_are_over_ranks_and_name_the_rank_that_takes_most() -> None:
    report = job(500, 510, 520, 530, 540, 550, 560, 570, 580)
    forward = next(row for row in rows(report, "percentiles") if row["name"] == "forward")
    assert [forward[key] for key in ("min_ns", "median_ns", "max_ns")] == [
        510_000,
        550_000,
        590_000,
    ]  # 10 us idle first
    assert (forward["p5_ns"], forward["p95_ns"]) == (514_000, 586_000)
    assert (forward["max_rank"], forward["max_host"]) == (8, "host2")


def test_own_time_and_waits_of_all_phases_are_the_step() -> None:
    report = job(*[500] * 8, 640)
    (whole,) = (row for row in rows(report, "percentiles") if row["name"] == "step")
    for rank in range(9):
        phases_of_rank = [row for row in rows(report, "rank_phases") if row["rank"] == rank]
        assert (
            sum(row["own_ns"] + row["waits_ns"] for row in phases_of_rank)
            == whole["min_ns"]
            == whole["max_ns"]
            == 1_000_000
        )


def test_people_see_clusters_only_of_more_ranks_than_they_read_one_by_one() -> None:
    assert job(*[500] * 7, 640).views == ()
    assert [view.key for view in job(*[500] * 8, 640).views] == ["clusters", "percentiles"]
    assert rows(analyze(Run("one", (computing(0, 500, 1),)), "clusters"), "clusters") == []


def test_the_heat_map_is_dark_where_a_rank_is_late() -> None:
    _, heat = job(*[500] * 7, 640, 500).views
    drawn = {row[0]: row[-1] for row in heat.rows}
    assert drawn == {"forward": "··█", "backward": "···", "waits": "", "step": ""}


def test_ranks_that_take_longer_while_nobody_waits_are_no_finding() -> None:
    def alone(rank: int) -> Trace:
        us = 1200 if rank > 8 else 1000
        return build(step(0, us), launch(2, 3, 1), kernel("gemm", 10, us - 10, 1), **world(rank, 12))

    report = analyze(Run("job", tuple(alone(rank) for rank in range(12))), "clusters")
    assert [row["num_ranks"] for row in rows(report, "clusters")] == [9, 3]
    assert report.findings == ()


# ---- what parts ranks -----------------------------------------------------------------------------------------------


def test_neither_the_order_of_ranks_nor_a_shift_of_all_changes_who_is_alike() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        times = 100 * (1 + 0.01 * rng.standard_normal((40, 3))) + 30 * (rng.random((40, 3)) > 0.9)
        order, shift = rng.permutation(40), rng.uniform(0, 1000, 3)
        plain, shuffled, moved = (
            cluster_ranks(times, 1.0),
            cluster_ranks(times[order], 1.0),
            cluster_ranks(times + shift, 1.0),
        )
        assert groups(plain[order]) == groups(shuffled)
        assert groups(plain) == groups(moved)


def groups(numbers: Iterable[int]) -> set[frozenset[int]]:
    """Who is with whom, whatever the clusters are called."""
    held: dict[int, set[int]] = {}
    for index, number in enumerate(numbers):
        held.setdefault(int(number), set()).add(index)
    return {frozenset(members) for members in held.values()}


def test_less_than_what_matters_parts_nobody_and_a_drift_has_no_edge() -> None:
    assert gap_clusters(np.array([100.0] * 20 + [100.9] * 4), 1.0).max() == 0
    assert gap_clusters(np.array([100.0] * 20 + [101.1] * 4), 1.0).max() == 1
    assert gap_clusters(np.linspace(100, 200, 300), 1.0).max() == 0


@pytest.mark.parametrize("kinds", [2, 3, 4])
def test_kinds_of_equal_number_are_told_apart(kinds: int) -> None:
    rng = np.random.default_rng(kinds)
    values = np.repeat(100 + 30 * np.arange(kinds), 40) + rng.standard_normal(40 * kinds)
    assert gap_clusters(values, 1.0).tolist() == np.repeat(np.arange(kinds), 40).tolist()


# ---- jobs that a seed draws -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """Who is late, where, and by how many ms; each with the ranks that are late alike."""

    kind: str
    num_ranks: int
    late: tuple[tuple[tuple[int, ...], str, float], ...]

    @property
    def clusters(self) -> set[frozenset[int]]:
        late = [frozenset(ranks) for ranks, _, _ in self.late]
        return {frozenset(range(self.num_ranks)).difference(*late), *late}


JOB = job_of(Run("job", ()))
KINDS = ("nobody", "one rank", "one host", "two hosts", "two hosts apart", "scattered")


def drawn(seed: int, sizes: Sequence[int] = (48, 64, 256, 1024)) -> Drawn:
    rng = random.Random(seed)
    kind, num_ranks, phase = KINDS[seed % len(KINDS)], rng.choice(sizes), rng.choice(PHASES)
    hosts = [tuple(range(8 * host, 8 * host + 8)) for host in range(num_ranks // 8)]
    first, second = rng.sample(hosts, 2)
    by = rng.uniform(20, 60)
    late: dict[str, tuple[tuple[tuple[int, ...], str, float], ...]] = {
        "nobody": (),
        "one rank": (((rng.choice(first),), phase, by),),
        "one host": ((first, phase, by),),
        "two hosts": (((*first, *second), phase, by),),
        "two hosts apart": ((first, "forward", by), (second, "backward", by / 1.5)),
        "scattered": ((tuple(rng.sample(range(num_ranks), 5)), phase, by),),
    }
    return Drawn(kind, num_ranks, late[kind])


def times_of(case: Drawn, seed: int) -> list[PhaseTimes]:
    """What ranks tell that differ by 0.2 to 1 % and meet once a step: all wait for the last."""
    rng = np.random.default_rng(seed)
    noise = rng.uniform(0.002, 0.01)
    busy = np.array([2, 80, 130, 10]) * MS * (1 + noise * rng.standard_normal((case.num_ranks, 4)))
    for ranks, phase, by_ms in case.late:
        busy[list(ranks), PHASES.index(phase)] += by_ms * MS
    ns = np.zeros((case.num_ranks, 4, len(TimeCategory)))
    ns[:, :, TimeCategory.COMPUTE] = busy
    ns[:, 2, TimeCategory.EXPOSED_COMM] = busy.sum(axis=1).max() - busy.sum(axis=1)
    return [PhaseTimes(rank, f"node{rank // 8}", PHASES, ns[rank]) for rank in range(case.num_ranks)]


def members(row: Row) -> frozenset[int]:
    bounds = [part.split("-") for part in row["ranks"].split(", ")]
    return frozenset(rank for part in bounds for rank in range(int(part[0]), int(part[-1]) + 1))


def check(report: Report, case: Drawn, tolerance_ms: float) -> None:
    clusters = {members(row): row for row in rows(report, "clusters")}
    assert clusters.keys() == case.clusters
    for ranks, phase, by_ms in case.late:
        row = clusters[frozenset(ranks)]
        assert row["phase"] == phase
        assert row["phase_ns"] / MS == pytest.approx(by_ms, abs=tolerance_ms)
        assert row["num_hosts"] == len({rank // 8 for rank in ranks})
    assert bool(report.findings) == bool(case.late)
    for finding in report.findings:
        worst = max(case.late, key=lambda late: late[2])
        num_alike = case.num_ranks - sum(len(ranks) for ranks, _, _ in case.late)
        assert (finding.measures["num_alike"], finding.subject.phase) == (num_alike, worst[1])
        assert finding.key == f"rank {min(worst[0])}"


@pytest.mark.slow
def test_clusters_are_those_that_a_seed_has_drawn() -> None:
    for seed in range(DRAWN):
        case = drawn(seed)
        check(merge(JOB, times_of(case, seed)), case, tolerance_ms=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(6), id="six jobs"),
        pytest.param(range(6, MANY), id=f"the rest of {MANY}", marks=pytest.mark.many),
    ],
)
def test_clusters_are_found_in_the_traces_of_jobs_that_were_played_through(seeds: range) -> None:
    for seed in seeds:
        case = drawn(seed, sizes=(48,))
        if case.kind == "two hosts apart":  # a fleet is late in one phase
            case = replace(case, late=case.late[:1])
        ranks, phase, by_ms = case.late[0] if case.late else ((), "forward", 0.0)
        late = {"late_ranks": ranks, "late_in": phase, "late_ns": round(by_ms * MS)}
        played = play(Fleet(case.num_ranks, layers=1, steps=3, seed=seed, **late))
        traces = tuple(read_text(played.text(rank).encode()) for rank in range(case.num_ranks))
        check(analyze(Run("job", traces), "clusters"), case, tolerance_ms=0.5)
