"""Arms that ran apart: what each came to, and which batch fits, from numbers made by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from traceq.analysis.registry import analyze
from traceq.model import Arm, Manifest, Processes, Run

MS, MIB = 1_000_000, 2**20


def tried(strategy: str, size: int, *, left_mib: int = 0, status: str = "", expandable: bool = False) -> Arm:
    """A try of a batch on two ranks that left so much memory."""
    noted = {"allocated_bytes": size * MIB, "reserved_bytes": (size + 5) * MIB, "head_room_bytes": left_mib * MIB}
    varied = {"strategy": strategy, "expandable_segments": expandable, "batch_size": size}
    facts = {} if status else noted
    name = f"{strategy}{'+' * expandable}{size}"
    return Arm(name, "", samples_per_step=2 * size, varied=varied, status=status, fault=status and "told", facts=facts)


def run(*arms: Arm, steps_ms: Mapping[str, tuple[float, ...]], apart: bool = True) -> Run:
    """A run of these arms; of each, the median step of each of its processes."""
    manifest = Manifest(1, "r", "probe", "?", {"batch_size": 9}, arms, (), 2, 1, "complete", apart=apart)
    processes = tuple(
        Processes(
            name,
            np.arange(len(medians)),
            np.array([round(ms * MS) for ms in medians], np.int64),
            np.full(len(medians), 4),
            np.arange(1, 1 + len(medians)) * MIB,
        )
        for name, medians in steps_ms.items()
    )
    return Run("RUN", (), manifest, arms[0].name, processes=processes)


def test_an_arm_is_its_middle_process_and_its_rate_that_of_all_ranks() -> None:
    first, second = Arm("a", "", baseline=True, samples_per_step=30), Arm("b", "", status="skipped", fault="absent")
    (table,) = analyze(run(first, second, steps_ms={"a": (10, 30, 15)}), "arms").tables
    one, other = table.to_dicts()
    assert (one["num_processes"], one["num_steps"], one["batch_size"]) == (3, 12, 9)
    assert (one["step_ns"], one["spread_ns"], one["peak_bytes"]) == (15 * MS, 20 * MS, 3 * MIB)
    assert one["samples_per_second"] == pytest.approx(2000)
    assert (other["step_ns"], other["samples_per_second"], other["status"], other["fault"]) == (
        None,
        None,
        "skipped",
        "absent",
    )


def test_arms_of_one_process_are_told_elsewhere() -> None:
    report = analyze(run(Arm("a", "", baseline=True), steps_ms={}, apart=False), "arms")
    assert (report.tables[0].rows, report.views) == ((), ())


def test_batches_are_told_by_backend_with_the_largest_the_fastest_and_what_it_left() -> None:
    arms = (
        tried("ddp", 8, left_mib=90),
        tried("ddp", 16, left_mib=40),
        tried("ddp", 32, status="out of memory"),
        tried("ddp", 24, left_mib=7),
        tried("ddp", 8, left_mib=80, expandable=True),
        tried("zero2", 8, status="skipped"),
    )
    steps = {"ddp8": (10,), "ddp16": (16,), "ddp24": (48,), "ddp+8": (8,)}
    matrix, summary = analyze(run(*arms, steps_ms=steps), "batches").views
    assert [column.title for column in matrix.columns] == ["batch per rank", "ddp", "ddp, expandable segments"]
    assert matrix.rows == (
        (8, "1,600 /s", "2,000 /s"),
        (16, "2,000 /s", ""),
        (24, "1,000 /s", ""),
        (32, "out of memory", ""),
    )
    ddp, expandable = summary.to_dicts()
    assert (ddp["largest"], ddp["refused"], ddp["fastest"], ddp["samples_per_second"]) == (24, 32, 16, 2000)
    assert (ddp["allocated_bytes"], ddp["fragmentation_bytes"], ddp["head_room_bytes"]) == (24 * MIB, 5 * MIB, 7 * MIB)
    assert (expandable["largest"], expandable["refused"]) == (8, None)


def test_a_batch_that_nothing_is_known_of_yet_does_not_fit() -> None:
    running = Arm("ddp16", "", varied={"strategy": "ddp", "batch_size": 16})
    matrix, summary = analyze(run(tried("ddp", 8), running, steps_ms={"ddp8": (10,)}), "batches").views
    assert matrix.rows == ((8, "1,600 /s"), (16, ""))
    assert summary.to_dicts()[0]["largest"] == 8


def test_one_batch_alone_is_no_walk() -> None:
    assert analyze(run(tried("ddp", 8), tried("fsdp2", 8), steps_ms={}), "batches").views == ()
