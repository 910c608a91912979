"""Kernels, copies and coverage: sums over the whole trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import build, kernel, launch, memcpy, memset, op, step, table

from traceq.analyses.registry import analyze
from traceq.model import Run


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("DtoH (Device -> Pinned)", "DtoH"),
        ("DtoH (Device -> Pageable)", "DtoH"),
        ("HtoD (Pageable -> Device)", "HtoD"),
        ("DtoD (Device -> Device)", "DtoD"),
        ("PtoP (Device -> Device)", "PtoP"),
        ("of a new kind", "Memcpy of a new kind"),
    ],
)
def test_a_copy_is_named_by_its_direction_whatever_the_memory(name: str, kind: str) -> None:
    (found,) = table(build(memcpy(name, 5, 2, size=64)), "memcpy")
    assert found == {"rank": 0, "kind": kind, "num": 1, "bytes": 64, "gpu_ns": 2_000}


def test_copies_of_one_direction_are_added_up_and_memsets_are_none() -> None:
    trace = build(
        memcpy("DtoH (Device -> Pinned)", 5, 2), memcpy("DtoH (Device -> Pageable)", 9, 3, size=0), memset(20, 1)
    )
    assert table(trace, "memcpy") == [{"rank": 0, "kind": "DtoH", "num": 2, "bytes": 8, "gpu_ns": 5_000}]


def test_kernels_are_listed_by_phase_and_name_the_longest_first() -> None:
    trace = build(
        step(0, 100),
        launch(1, 1, 1),
        kernel("void gemm<float>(x)", 5, 10, 1),
        kernel("void gemm<float>(x)", 20, 10, 1),
        kernel("relu", 40, 50, 1),
        kernel("relu", 95, 1),
    )
    rows = [(found["phase"], found["name"], found["num"], found["gpu_ns"]) for found in table(trace, "kernels")]
    assert rows == [
        ("forward", "relu", 1, 50_000),
        ("forward", "void gemm<float>(x)", 2, 20_000),
        ("unattributed", "relu", 1, 1_000),
    ]


def test_people_see_a_kernels_name_without_its_arguments() -> None:
    trace = build(launch(1, 1, 1), kernel("void at::native::elementwise<4, Add<float>>(int, Array)", 5, 10, 1))
    assert analyze(Run("", (trace,)), "kernels").views[0].rows[0][1] == "elementwise<Add>"


def test_what_is_not_known_is_counted(tmp_path: Path) -> None:
    trace = build(
        op("aten::mm", 0, 5), op("no time", 1, -1), launch(1, 1, 1), kernel("a", 5, 3, 1), kernel("b", 9, 4, 77)
    )
    assert table(trace, "coverage") == [
        {"num_gpu_events": 2, "unattributed_ns": 4_000, "before_window_ns": 0, "dropped_events": 1}
    ]


def test_a_trace_without_a_device_has_no_device_tables() -> None:
    trace = build(step(0, 10), op("aten::mm", 1, 5))
    assert [table(trace, name) for name in ("kernels", "memcpy", "syncs", "collectives")] == [[], [], [], []]
