"""Some simulated jobs of several ranks: collectives, their exposed time and the partition against what was simulated.

Hundreds more under `-m many`. What a sync waits for is named.
"""

from __future__ import annotations

from collections import Counter

import pytest
from builder import table
from simulator import US, Shape, a_job, run_of, simulate
from simulator.arrivals import arrivals
from simulator.instants import partition, pieces

from traceq.analysis.registry import analyze

FEW, MANY = 20, 600
CASES = [
    pytest.param(range(FEW), id=f"{FEW} jobs"),
    pytest.param(range(FEW, MANY), id=f"the rest of {MANY}", marks=pytest.mark.many),
]


EXPOSED = {"exposed_wait": "exposed_comm", "exposed_transfer": "exposed_comm"}
"""The simulator does not tell waiting from transfer."""


@pytest.mark.slow
@pytest.mark.parametrize("seeds", CASES)
def test_collectives_are_counted_sized_and_exposed_as_they_ran_on_every_rank(seeds: range) -> None:
    for seed in seeds:
        job = a_job(seed, num_ranks=2 + seed % 3, annotated=seed % 2 == 0)
        timelines = simulate(job)
        expected: dict[tuple[int, str, str], Counter[str]] = {}
        for timeline in timelines:
            alone = Counter[int]()
            for piece in pieces(timeline):
                if piece.category == "exposed_comm":
                    alone[id(piece.owner)] += piece.ns
            for issue in timeline.issues:
                work, selected = issue.work, (timeline.rank, issue.what.name, issue.phase)
                sums = expected.setdefault(selected, Counter(exposed_ns=0))
                sums.update(num=1, num_kernels=1, bytes=4 * issue.what.elements)
                sums.update(gpu_ns=work.end - work.start, exposed_ns=alone[id(work)])
        result: dict[tuple[int, str, str], Counter[str]] = {}
        for row in table(run_of(job, timelines), "collectives"):
            sums = result.setdefault((row["rank"], row["name"], row["phase"]), Counter())
            sums.update({key: row[key] for key in ("num", "num_kernels", "bytes", "gpu_ns", "exposed_ns")})
        assert result == expected, seed


@pytest.mark.slow
@pytest.mark.parametrize("seeds", CASES)
def test_the_partition_of_every_rank_is_what_happened(seeds: range) -> None:
    for seed in seeds:
        job = a_job(seed, num_ranks=2 + seed % 3, annotated=seed % 2 == 0)
        timelines = simulate(job)
        result: dict[int, dict[tuple[int, str, str], int]] = {timeline.rank: {} for timeline in timelines}
        for row in table(run_of(job, timelines, sync_rows=True), "partition"):
            key = row["step"] - job.first_step, row["phase"], EXPOSED.get(row["category"], row["category"])
            result[row["rank"]][key] = result[row["rank"]].get(key, 0) + row["dur_ns"]
        for timeline in timelines:
            assert result[timeline.rank] == +partition(timeline), (seed, timeline.rank)


@pytest.mark.parametrize("seeds", CASES)
def test_a_collective_ends_on_all_ranks_together_and_the_last_to_come_waits_for_none(seeds: range) -> None:
    """Of the simulator: what the analyses of ranks are held against."""
    for seed in seeds:
        for met in arrivals(simulate(a_job(seed, num_ranks=3, shape=Shape(collectives=True)))):
            assert max(met.over.values()) - min(met.over.values()) <= 600
            assert min(met.wait(rank) for rank in met.came) == 0
            assert met.transfer >= 10 * US - 300


def test_memory_is_what_the_program_handed_out_in_each_phase() -> None:
    for seed in range(FEW):
        job = a_job(seed)
        (timeline,) = timelines = simulate(job)
        expected: dict[str, Counter[str]] = {}
        for index, size, _ in timeline.memory:
            sums = expected.setdefault(timeline.phase_at(index), Counter(num=0))
            sums.update(num=1, allocated_bytes=max(size, 0), freed_bytes=max(-size, 0), growth_bytes=size)
        report = analyze(run_of(job, timelines, memory=True), "memory")
        by_phase, peaks = (
            [dict(zip([column.key for column in result.columns], row, strict=True)) for row in result.rows]
            for result in report.tables
        )
        reported = {row["phase"]: {key: row[key] for key in expected[row["phase"]]} for row in by_phase}
        assert reported == expected, seed
        assert peaks[0]["peak_bytes"] == max(total for *_, total in timeline.memory), seed
