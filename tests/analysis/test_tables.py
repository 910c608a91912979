"""Kernels, copies and coverage: sums over the whole trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import build, kernel, launch, memcpy, memset, op, step, table

from traceq.analysis.registry import analyze
from traceq.model import Run, Trace


@pytest.mark.parametrize(
    ("name", "kind", "of"),
    [
        ("DtoH (Device -> Pinned)", "DtoH", "pinned"),
        ("DtoH (Device -> Pageable)", "DtoH", "pageable"),
        ("HtoD (Pageable -> Device)", "HtoD", "pageable"),
        ("DtoD (Device -> Device)", "DtoD", ""),
        ("PtoP (Device -> Device)", "PtoP", ""),
        ("of a new kind", "Memcpy of a new kind", ""),
    ],
)
def test_a_copy_is_named_by_its_direction_and_the_memory_of_the_host(name: str, kind: str, of: str) -> None:
    (row,) = table(build(memcpy(name, 5, 2, size=64)), "memcpy")
    sums = {"num": 1, "bytes": 64, "gpu_ns": 2_000, "under_kernels_ns": 0}
    assert row == {"rank": 0, "kind": kind, "memory": of, **sums}


def test_copies_of_one_kind_are_added_up_and_memsets_are_none() -> None:
    pinned = memcpy("DtoH (Device -> Pinned)", 5, 2), memcpy("DtoH (Device -> Pinned)", 9, 3, size=0)
    rows = table(build(*pinned, memcpy("DtoH (Device -> Pageable)", 15, 4), memset(20, 1)), "memcpy")
    sums = [(row["kind"], row["memory"], row["num"], row["bytes"], row["gpu_ns"]) for row in rows]
    assert sums == [("DtoH", "pageable", 1, 8, 4_000), ("DtoH", "pinned", 2, 8, 5_000)]


@pytest.mark.parametrize(
    ("device", "copy", "limit"),
    [
        ("NVIDIA A100-SXM4-40GB", "HtoD (Pinned -> Device)", 25.0),
        ("Tesla V100-SXM2-32GB", "DtoH (Device -> Pageable)", 12.5),
        ("NVIDIA A100-SXM4-40GB", "DtoD (Device -> Device)", 777.5),
        ("NVIDIA A100-SXM4-40GB", "PtoP (Device -> Device)", None),
        ("another device", "HtoD (Pinned -> Device)", None),
    ],
)
def test_the_bandwidth_of_copies_stands_beside_what_they_reach(device: str, copy: str, limit: float | None) -> None:
    trace = build(memcpy(copy, 0, 1000, size=5_000_000), deviceProperties=[{"id": 0, "name": device}])
    (view,) = analyze(Run("a", (trace,)), "memcpy").views
    values = dict(zip((column.key for column in view.columns), view.rows[0], strict=True))
    assert (values["gbps"], values["limit"]) == (5.0, limit)


def test_a_copy_is_hidden_as_far_as_kernels_of_its_device_run() -> None:
    copy = "HtoD (Pinned -> Device)"
    trace = build(
        kernel("gemm", 10, 20, 1),
        kernel("relu", 25, 10, 2, stream=8),
        kernel("gemm", 0, 100, 3, device=1),
        memcpy(copy, 5, 20, stream=9),  # 10 to 25
        memcpy(copy, 30, 10, stream=9),  # 30 to 35
        memcpy(copy, 60, 4, stream=9),
    )
    (row,) = table(trace, "memcpy")
    assert (row["gpu_ns"], row["under_kernels_ns"]) == (34_000, 20_000)
    (view,) = analyze(Run("a", (trace,)), "memcpy").views
    rates = pytest.approx(100 * 20 / 34), pytest.approx(24 / 34_000), None
    assert view.rows == (("HtoD", "pinned", 3, 24, 34_000, 20_000, *rates),)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_hidden_is_what_a_count_of_instants_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernels, copies = (
        [(int(start), int(dur)) for start, dur in zip(rng.integers(0, 300, 12), rng.integers(1, 40, 12), strict=True)]
        for _ in range(2)
    )
    rows = [kernel("k", *one, corr=number + 1, stream=number) for number, one in enumerate(kernels)]
    rows += [memcpy("HtoD (Pinned -> Device)", *one, stream=50 + number) for number, one in enumerate(copies)]
    busy = {instant for start, dur in kernels for instant in range(start, start + dur)}
    hidden = sum(instant in busy for start, dur in copies for instant in range(start, start + dur))
    (row,) = table(build(*rows), "memcpy")
    assert row["under_kernels_ns"] == 1000 * hidden


def test_kernels_are_listed_by_phase_and_name_the_longest_first() -> None:
    trace = build(
        step(0, 100),
        launch(1, 1, 1),
        kernel("void gemm<float>(x)", 5, 10, 1),
        kernel("void gemm<float>(x)", 20, 10, 1),
        kernel("relu", 40, 50, 1),
        kernel("relu", 95, 1),
    )
    rows = [(row["phase"], row["name"], row["num"], row["gpu_ns"]) for row in table(trace, "kernels")]
    assert rows == [
        ("forward", "relu", 1, 50_000),
        ("forward", "void gemm<float>(x)", 2, 20_000),
        ("unattributed", "relu", 1, 1_000),
    ]


def test_people_see_a_kernels_name_without_its_arguments() -> None:
    trace = build(launch(1, 1, 1), kernel("void at::native::elementwise<4, Add<float>>(Array)", 5, 10, 1))
    assert analyze(Run("", (trace,)), "kernels").views[0].rows[0][1] == "elementwise<Add>"


def test_what_is_not_known_is_counted(tmp_path: Path) -> None:
    trace = build(
        op("aten::mm", 0, 5), op("no time", 1, -1), launch(1, 1, 1), kernel("a", 5, 3, 1), kernel("b", 9, 4, 77)
    )
    zeros = dict.fromkeys(("before_window_ns", "unrecorded_ns", "replay_ns", "uncaptured_ns", "unread_counters"), 0)
    assert table(trace, "coverage") == [{"num_gpu_events": 2, "unattributed_ns": 4_000, **zeros, "dropped_events": 1}]


def test_a_trace_without_a_device_has_no_device_tables() -> None:
    trace = build(step(0, 10), op("aten::mm", 1, 5))
    assert [table(trace, name) for name in ("kernels", "memcpy", "syncs", "collectives")] == [[], [], [], []]


def test_steps_show_a_device_lag_only_where_windows_follow_the_device() -> None:
    """Of two steps it is the mean lag; the only step of a device that is done before ends with the host."""
    launched = [launch(10, 1, 1), kernel("a", 20, 130, 1)]
    second = [step(100, 100, 1), launch(110, 1, 2), kernel("b", 160, 60, 2)]
    lagging, two = (shown_steps(build(step(0, 100), *launched, *more)) for more in ([], second))
    assert (lagging["lag_ns"], two["lag_ns"]) == (50_000, 20_000)
    one = shown_steps(build(step(0, 100), launch(10, 1, 1), kernel("a", 20, 30, 1)))
    assert one == {"rank": 0, "num": 1, "mean_ns": 100_000, "min_ns": 100_000, "max_ns": 100_000, "host_ns": 100_000}


def test_a_trace_without_steps_has_a_duration() -> None:
    assert shown_steps(build(launch(10, 1, 1), kernel("a", 20, 130, 1))) == {"rank": 0, "dur_ns": 140_000}


def shown_steps(trace: Trace) -> dict[str, Any]:
    """The only row that people see of the steps, without empty cells."""
    (row,) = analyze(Run("run", (trace,)), "steps").views[0].non_empty_columns.to_dicts()
    return row


def test_samples_of_hardware_counters_are_named_as_unread() -> None:
    sample = {"ph": "C", "cat": "hardware_counters", "name": "sm__throughput", "pid": "GPU 0 Counters", "tid": 0}
    trace = build(op("aten::mm", 0, 5), *({**sample, "ts": n, "args": {"": 1.5}} for n in range(3)))
    (row,) = table(trace, "coverage")
    assert row["unread_counters"] == 3
    assert [caveat.code for caveat in analyze(Run("", (trace,)), "coverage").caveats] == ["unread_counters"]
