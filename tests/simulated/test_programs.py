"""Some hundred simulated programs of one rank: every analysis against what was simulated, to the nanosecond.

Thousands under `-m many`. What a stream or an event synchronize waits for is known by its `cuda_sync` row.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
from builder import table
from simulator import Job, Timeline, a_job, run_of, simulate
from simulator.instants import Piece, idle, partition, windows
from simulator.savings import cost, starved, wait

from traceq.model import Run

FEW, MANY = 80, 4000
CASES = [
    pytest.param(range(FEW), id=f"{FEW} programs"),
    pytest.param(range(FEW, MANY), id=f"the rest of {MANY}", marks=pytest.mark.many),
]
every_program = pytest.mark.parametrize("seeds", CASES)


@dataclass(frozen=True)
class Case:
    """A program, what it did, and its trace."""

    job: Job
    timeline: Timeline
    run: Run

    def rows(self, analysis: str) -> list[dict[str, Any]]:
        return table(self.run, analysis)


@lru_cache(maxsize=FEW + 1)
def case(seed: int) -> Case:
    job = a_job(seed, num_steps=1 + seed % 3, annotated=seed % 2 == 0)
    timelines = simulate(job)
    return Case(job, timelines[0], run_of(job, timelines, stacks=seed % 3 > 0, sync_rows=True))


@every_program
def test_the_partition_is_what_happened_at_every_instant(seeds: range) -> None:
    for seed in seeds:
        one = case(seed)
        result = {
            (row["step"] - one.job.first_step, row["phase"], row["category"]): row["dur_ns"]
            for row in one.rows("partition")
        }
        assert result == +partition(one.timeline), seed
        by_step = Counter({step: 0 for step, _, _ in result})
        for (step, _, _), ns in result.items():
            by_step[step] += ns
        assert [by_step[n] for n in sorted(by_step)] == [end - start for start, end in windows(one.timeline)], seed


def test_the_host_compiles_when_the_program_does() -> None:
    """Its ops and backward nodes on tensors without data are no ops of the step: all other cells stay, too."""
    by_category = Counter[str]()
    for seed in range(FEW):
        job = a_job(seed, num_steps=1 + seed % 3, annotated=seed % 2 == 0, compiles=0.5)
        (timeline,) = simulate(job)
        rows = table(run_of(job, [timeline], stacks=seed % 3 > 0), "partition")
        cells = +partition(timeline)
        assert {
            (row["step"] - job.first_step, row["phase"], row["category"]): row["dur_ns"] for row in rows
        } == cells, seed
        by_category.update(category for _, _, category in cells)
    assert by_category["compiling"] > FEW


@pytest.mark.slow
@every_program
def test_phases_hold_the_work_that_they_launched(seeds: range) -> None:
    for seed in seeds:
        one = case(seed)
        for row in one.rows("phases"):
            selected = [work for work in one.timeline.works if work.call.phase == row["name"]]
            assert row["num_gpu_ops"] == len(selected), (seed, row)
            assert row["num_kernels"] == sum(work.category != "memcpy" for work in selected), (seed, row)
            assert row["gpu_sum_ns"] == sum(work.end - work.start for work in selected), (seed, row)
            edges = sorted({edge for work in selected for edge in (work.start, work.end)})
            covered = [b - a for a, b in pairwise(edges) if any(work.start <= a < work.end for work in selected)]
            assert row["gpu_busy_ns"] == sum(covered), (seed, row)


@every_program
def test_phases_last_as_long_as_the_main_thread_was_in_them(seeds: range) -> None:
    for seed in seeds:
        one, expected = case(seed), Counter[str]()
        edges = sorted({edge for *_, a, b in one.timeline.layers for edge in (a, b)} | set(sum(one.timeline.steps, ())))
        for start, end in pairwise(edges):
            expected[one.timeline.phase_at(start)] += end - start
        assert {row["name"]: row["cpu_ns"] for row in one.rows("phases") if row["cpu_ns"]} == expected, seed


@every_program
def test_steps_end_with_the_work_that_they_launched(seeds: range) -> None:
    for seed in seeds:
        one = case(seed)
        rows, expected = one.rows("steps"), windows(one.timeline)
        assert [row["window_ns"] for row in rows] == [end - start for start, end in expected], seed
        assert [row["dur_ns"] for row in rows] == [end - start for start, end in one.timeline.steps], seed
        lags = [window[1] - host[1] for window, host in zip(expected, one.timeline.steps, strict=True)]
        assert [row["lag_ns"] for row in rows] == lags, seed


def source_line(frame: str) -> str:
    return re.sub(r"\.py\((\d+)\): ", r".py:\1 ", frame)


def expected_syncs(one: Case, *, stacks: bool) -> dict[tuple[str, ...], Counter[str]]:
    """(kind, op, phase, line, module) -> sums."""
    sums: dict[tuple[str, ...], Counter[str]] = {}
    for block in one.timeline.blocks:
        where = (source_line(block.line), block.module) if stacks else ("", "")
        selected = sums.setdefault((block.kind, block.op, block.phase, *where), Counter())
        selected.update(num=1, bytes=block.size, blocked_ns=block.end - block.start, wait_ns=wait(block))
        selected.update(starved_ns=starved(one.timeline, block), cost_ns=cost(one.timeline, block))
    return sums


@pytest.mark.slow
@every_program
def test_syncs_are_those_that_kept_the_host_with_what_they_waited_for_and_what_the_device_then_lacked(
    seeds: range,
) -> None:
    for seed in seeds:
        one, sums = case(seed), Counter[str]()
        expected = expected_syncs(one, stacks=seed % 3 > 0)
        exact = ("num", "bytes", "blocked_ns", "wait_ns", "starved_ns", "cost_ns")
        for row in one.rows("syncs"):
            selected = expected.pop((row["kind"], row["op"], row["phase"], row["line"], row["module"]))
            assert {key: row[key] for key in exact} == {key: selected[key] for key in exact}, (seed, row)
            sums.update(num=row["num"])
        assert not expected, seed


@every_program
def test_copies_and_kernels_add_up_to_what_ran(seeds: range) -> None:
    for seed in seeds:
        one = case(seed)
        copies, kernels = Counter[str](), Counter[tuple[str, str]]()
        for work in one.timeline.works:
            if work.category == "memcpy":
                copies[work.name[7:11]] += work.size
            else:
                kernels[work.call.phase, work.name] += work.ns
        shown = Counter[str]()
        for row in one.rows("memcpy"):  # one for each kind of memory
            shown[row["kind"]] += row["bytes"]
        assert shown == copies, seed
        assert {(row["phase"], row["name"]): row["gpu_ns"] for row in one.rows("kernels")} == kernels, seed


@every_program
def test_idle_time_is_filled_by_what_the_host_was_at(seeds: range) -> None:
    """By cause, phase and op; an op has its self time, on whichever thread it is."""
    for seed in seeds:
        one = case(seed)
        windows_ = zip(one.rows("steps"), windows(one.timeline), strict=True)
        whole = [window for row, window in windows_ if not row["partial"]] or windows(one.timeline)
        expected: Counter[tuple[str, str, str]] = Counter()
        for gap in idle(one.timeline):
            if any(low <= gap.start < high for low, high in whole):
                for start, end, cause, op in idle_causes(one.timeline, gap):
                    expected[cause, gap.phase, op] += end - start
        result: Counter[tuple[str, str, str]] = Counter()
        for row in one.rows("idle"):
            result[row["cause"], row["phase"], row["op"] if row["cause"] == "host op" else ""] += row["dur_ns"]
        assert result == expected, seed


def idle_causes(timeline: Timeline, gap: Piece) -> list[tuple[int, int, str, str]]:
    """(start, end, cause, op) of the parts of a gap."""
    named = {"sync_wait": "sync", "alloc_wait": "allocation", "launch_latency": "launch queue", "tail": "end"}
    if gap.category in named:
        return [(gap.start, gap.end, named[gap.category], "")]
    rows = [
        row for row in timeline.rows if row.category in ("op", "load") and row.start < gap.end > gap.start < row.end
    ]
    edges = {gap.start, gap.end} | {time for row in rows for time in (row.start, row.end) if gap.start < time < gap.end}
    parts = []
    for start, end in pairwise(sorted(edges)):
        around = [row for row in rows if row.start <= start < row.end]
        inner = max(around, key=lambda row: row.start, default=None)
        if inner is not None and inner.category == "op":
            parts.append((start, end, "host op", inner.name))
        else:
            parts.append((start, end, "data loader" if inner else "python", ""))
    return parts
