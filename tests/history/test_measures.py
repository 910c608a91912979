"""Measures of a run: exact counts, the rank that has most, times that were not profiled, and what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from builder import Event, call, comms, kernel, launch, memcpy, op, step, world, write
from made_history import write_run
from paths import FIXTURES

from traceq.engines.rank_reader import SameProcess
from traceq.errors import UnreadableInput
from traceq.history.adding import Measured, MeasuredArm, measure_run


def measured(path: Path) -> tuple[MeasuredArm, ...]:
    return measure_run(path, start=lambda: nullcontext(SameProcess()))


def by_name(arm: MeasuredArm) -> dict[str, Measured]:
    return {each.measure: each for each in arm.measured}


def rows(num_syncs: int) -> list[Event]:
    """A step of 100 us with a kernel of 20 and an all-reduce of 4,000 bytes, in which the host reads some values."""
    events = [step(0, 100), op("aten::mm", 1, 4), launch(2, 2, 1), kernel("gemm", 5, 20, 1)]
    events += [comms("allreduce", 80, 10, (1000, 1000)), launch(82, 2, 2)]
    events += [kernel("ncclDevKernel_AllReduce_Sum_f32", 84, 10, 2, stream=9)]
    for index in range(num_syncs):
        events += [
            call("cudaMemcpyAsync", 30 + 10 * index, 2, 9 + index),
            call("cudaStreamSynchronize", 33 + 10 * index, 6),
        ]
        events += [memcpy("DtoH (Device -> Pinned)", 36 + 10 * index, 2, 9 + index)]
    return events


def test_counts_are_per_step_of_the_rank_with_most(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", *rows(num_syncs=1 + 2 * rank), **world(rank, 2))
    (arm,) = measured(tmp_path)
    values = by_name(arm)
    assert (values["dtoh syncs"].value, values["dtoh syncs"].rank) == (3, 1)
    assert (values["all_reduce"].value, values["all_reduce bytes"].value) == (1, 4000)
    assert (values["all_gather"].value, values["kernels"].value, values["traced step"].value) == (0, 2, 100_000)
    assert "step" not in values
    assert arm.environment["num_ranks"] == 2


def test_a_trace_without_a_device_has_no_counts_of_one(tmp_path: Path) -> None:
    (arm,) = measured(write(tmp_path / "trace.json", step(0, 100), op("aten::mm", 1, 90)))
    assert {"scalar syncs", "traced step"} <= by_name(arm).keys()
    assert {"dtoh syncs", "kernels", "mfu"} & by_name(arm).keys() == set()


def test_a_folder_that_lacks_a_rank_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", *rows(1), **world(0, 2))
    with pytest.raises(UnreadableInput, match="1 of its 2 ranks"):
        measured(tmp_path)


def test_unprofiled_times_are_medians_within_their_interval(tmp_path: Path) -> None:
    (arm,) = measured(write_run(tmp_path / "run", np.random.default_rng(1), number=3, commit="c0ffee"))
    values = by_name(arm)
    for name, us in (("step", 40_000), ("forward", 14_000), ("backward", 20_000)):
        low, high = values[name].interval or (0, 0)
        assert low <= values[name].value <= high
        assert low / 1000 == pytest.approx(us, rel=0.02)
    assert values["peak memory"].value == 1 << 30
    assert (arm.commit, f"{arm.time:%Y-%m-%d %H}") == ("c0ffee", "2026-11-05 09")
    assert "traced step" not in values


def test_each_timed_arm_of_a_run_is_measured() -> None:
    arms = measured(FIXTURES / "outlier_ab")
    assert [arm.arm for arm in arms] == ["off", "on", "deferred"]
    assert len({arm.run_id for arm in arms}) == 1
    assert [by_name(arm)["scalar syncs"].value for arm in arms] == [5, 6, 5]
    (single,) = measured(FIXTURES / "outlier_ab" / "on")
    assert single.measured == arms[1].measured
